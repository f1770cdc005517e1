"""Saved states in a store that lists late, shows old versions, or acknowledges and forgets.

Real HTTP to a real S3 server, with a relay between that breaks its word. What the server holds is
the truth: a copy may go only where another one is there in truth.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kybernate.checkpoint import gc
from kybernate.checkpoint.places import Place, open_place, read_manifest
from kybernate.checkpoint.vault import Vault
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.into import Into
from kybernate.errors import CorruptError, KybernateError, RefusedError, RetryableError
from kybernate.lib.deadline import Deadline
from kybernate.types import PodUid, Tier
from tests.kit.breaks import fickle
from tests.kit.servers import s3
from tests.unit.checkpoint.kit import (
    FACTS,
    KEYS,
    NOW,
    BreakingObjects,
    KilledError,
    contents,
    make_dump,
    place,
)

if TYPE_CHECKING:
    from datetime import datetime

pytestmark = pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-")

UID = PodUid("5e1f")
INTO = Into("team-a", UID)
DAY = 25 * 3600.0
SMALL = 300 << 10


class World:
    """A node with a place of its own, the store behind its relay, and the server itself."""

    servers: ClassVar[dict[str, s3.Server]] = {}

    def __init__(self, folder: Path, server: s3.Server) -> None:
        self.folder, self._ticks = folder, itertools.count()
        self._stack = ExitStack()
        url = f"{server.url}/{folder.name}"
        self.relay = self._stack.enter_context(fickle.relay(url, server.environment))
        self.truth = _opened(url, server.environment)
        self.far = _opened(url, self.relay.environment)
        self.near = place(folder / "near")
        self.vault = self.restarted()

    def restarted(self, far: Place | None = None) -> Vault:
        return Vault({Tier.RAM: self.near, Tier.OBJECT: far or self.far}, Tier.RAM, KEYS, self._now)

    def _now(self) -> datetime:
        """Later by a microsecond each time: of one moment two states may have the same name."""
        return NOW + next(self._ticks) * timedelta(microseconds=1)

    def seal(self, seed: int) -> tuple[str, dict[str, bytes]]:
        async def story():
            images = make_dump(await self.vault.begin(UID), seed, blocks=8)
            saved = contents(images)
            return await self.vault.seal(images, FACTS, 60), saved

        return asyncio.run(story())

    def run(self, work) -> BaseException | None:
        """What it raises of what may be raised."""
        try:
            asyncio.run(work)
        except (KybernateError, OSError, KilledError) as error:
            return error
        return None

    def is_near(self, artifact: str) -> bool:
        return (self.near.root / layout.manifest_key(artifact)).exists()

    def is_far(self, artifact: str) -> bool:
        try:
            verify(self.truth, read_manifest(self.truth, artifact, KEYS), KEYS, Deadline(60))
        except KybernateError:
            return False
        return True

    def loses(self, key: str) -> None:
        """The server forgets what it has acknowledged, and shown."""
        self.truth.objects.delete([key])
        self.relay.forget(f"{s3.BUCKET}/kyb/{self.folder.name}/{key}")

    def close(self) -> None:
        self.vault.close()
        self._stack.close()


def _opened(url: str, environment) -> Place:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        opened = open_place(url)
    return Place("store", opened.objects, pack_bytes=SMALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3.server(tmp_path_factory.mktemp("s3")) as one:
        World.servers["one"] = one
        yield one


@pytest.fixture
def world(server, tmp_path):
    made = World(tmp_path, server)
    yield made
    made.close()


def test_a_pack_that_was_forgotten_and_is_listed_still_is_no_copy(world):
    artifact, _ = world.seal(1)
    assert world.run(world.vault.pack(artifact, Tier.OBJECT, 60)) is None
    pack = read_manifest(world.truth, artifact, KEYS).packs[0].id
    world.loses(f"{layout.PACKS}team-a/{pack}")
    world.relay.late = 1
    error = world.run(world.vault.drop(artifact, Tier.RAM))
    assert isinstance(error, RefusedError)
    assert world.is_near(artifact)
    assert world.run(world.vault.pack(artifact, Tier.OBJECT, 60)) is None
    assert world.is_far(artifact)
    assert world.run(world.vault.drop(artifact, Tier.RAM)) is None


def test_a_pack_that_was_forgotten_and_is_listed_still_is_not_built_upon(world):
    artifact, _ = world.seal(1)
    assert world.run(world.vault.pack(artifact, Tier.OBJECT, 60)) is None
    world.loses(f"{layout.PACKS}team-a/{read_manifest(world.truth, artifact, KEYS).packs[0].id}")
    world.relay.late = 1
    other, _ = world.seal(1)
    assert isinstance(world.run(world.vault.pack(other, Tier.OBJECT, 60)), RetryableError)
    assert world.run(world.vault.pack(other, Tier.OBJECT, 60)) is None
    assert world.is_far(other)


@pytest.mark.parametrize("kind", [layout.PACKS, layout.KEYS, layout.ARTIFACTS, layout.CLOCKS])
def test_what_is_acknowledged_and_forgotten_is_tried_again(world, kind):
    artifact, saved = world.seal(1)
    world.relay.forgets, world.relay.match = 1, f"/{kind}"
    assert isinstance(world.run(world.vault.pack(artifact, Tier.OBJECT, 60)), RetryableError)
    assert world.relay.forgets == 0
    assert world.is_near(artifact)
    assert world.run(world.vault.pack(artifact, Tier.OBJECT, 60)) is None
    assert world.run(world.vault.drop(artifact, Tier.RAM)) is None
    assert fetched(world, artifact) == saved


def test_what_isnt_shown_yet_is_no_copy(world):
    artifact, _ = world.seal(1)
    world.relay.stale = 100
    for _ in range(3):
        assert isinstance(world.run(world.vault.pack(artifact, Tier.OBJECT, 60)), RetryableError)
        assert world.run(world.vault.drop(artifact, Tier.RAM)) is not None
    world.relay.heal()
    assert world.run(world.vault.pack(artifact, Tier.OBJECT, 60)) is None
    assert world.run(world.vault.drop(artifact, Tier.RAM)) is None


def test_a_sweep_holds_what_is_listed_and_not_shown(world):
    artifact, _ = world.seal(1)
    assert world.run(world.vault.pack(artifact, Tier.OBJECT, 60)) is None
    manifest = bytes(world.truth.objects.get(layout.manifest_key(artifact)))
    world.truth.objects.delete([layout.manifest_key(artifact)])
    world.relay.ahead = DAY
    swept = gc.sweep(world.far, KEYS, dry_run=False)
    assert "can't be read" in swept.held["team-a"]
    world.truth.objects.put(layout.manifest_key(artifact), manifest)
    assert gc.sweep(world.far, KEYS, dry_run=False).plans["team-a"].condemn == ()


def fetched(world, artifact: str) -> dict[str, bytes]:
    folder = world.folder / "back"
    shutil.rmtree(folder, ignore_errors=True)
    asyncio.run(world.vault.fetch(artifact, folder, 60, INTO))
    return contents(folder)


class Fickleness(RuleBasedStateMachine):
    """Random parks, drops, sweeps and restores, with a store that does what it may not, and with
    agents that die in the middle."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kyb-fickle-"))
        self.world = World(self.folder, World.servers["one"])
        self.random = Random(seed)
        self.saved: dict[str, dict[str, bytes]] = {}

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.relay.heal()
        for artifact, saved in self.saved.items():
            if not self.world.is_near(artifact):
                assert fetched(self.world, artifact) == saved
        self.world.close()
        shutil.rmtree(self.folder)

    def _one(self) -> str:
        return self.random.choice(sorted(self.saved))

    @precondition(lambda self: len(self.saved) < 4)
    @rule(seed=st.integers(1, 2))
    def seals(self, seed: int) -> None:
        artifact, saved = self.world.seal(seed)
        self.saved[artifact] = saved

    @precondition(lambda self: self.saved)
    @rule()
    def packs(self) -> None:
        self.world.run(self.world.vault.pack(self._one(), Tier.OBJECT, 60))

    @precondition(lambda self: self.saved)
    @rule(at=st.integers(1, 30), how=st.sampled_from(("kill-before", "kill-after")))
    def dies_while_it_packs(self, at: int, how: str) -> None:
        world = self.world
        dying = Place("store", BreakingObjects(world.far.objects, at, how), pack_bytes=SMALL)
        vault = world.restarted(dying)
        world.run(vault.pack(self._one(), Tier.OBJECT, 60))
        vault.close()
        world.vault.close()
        world.vault = world.restarted()

    @precondition(lambda self: self.saved)
    @rule()
    def drops(self) -> None:
        artifact = self._one()
        self.world.run(self.world.vault.drop(artifact, Tier.RAM))

    @precondition(lambda self: self.saved)
    @rule()
    def is_needed_no_more(self) -> None:
        artifact = self._one()
        del self.saved[artifact]
        for tier in (Tier.RAM, Tier.OBJECT):
            self.world.run(self.world.vault.drop(artifact, tier, forget="a test"))

    @precondition(lambda self: self.saved)
    @rule()
    def restores(self) -> None:
        artifact = self._one()
        with suppress(KybernateError):
            assert fetched(self.world, artifact) == self.saved[artifact]

    @precondition(lambda self: self.saved)
    @rule()
    def verifies(self) -> None:
        artifact = self._one()
        if self.world.run(self.world.vault.verify(artifact, Tier.OBJECT, 60)) is None:
            assert self.world.is_far(artifact) or self.world.relay.stale

    @rule()
    def sweeps(self) -> None:
        with suppress(RetryableError):
            gc.sweep(self.world.far, KEYS, dry_run=False)

    @rule()
    def a_day_passes(self) -> None:
        """By then lists are up to date, and what is shown is what is there."""
        self.world.relay.heal()
        self.world.relay.ahead += DAY

    @rule(back=st.integers(1, 12))
    def lists_late(self, back: int) -> None:
        self.world.relay.late = back

    @rule(back=st.integers(1, 6))
    def shows_old_versions(self, back: int) -> None:
        self.world.relay.stale = back

    @rule(kind=st.sampled_from((layout.PACKS, layout.ARTIFACTS, layout.KEYS, layout.INDEX, "")))
    def will_forget(self, kind: str) -> None:
        self.world.relay.match, self.world.relay.forgets = kind, self.random.randint(1, 3)

    @rule()
    def will_lose_answers(self) -> None:
        self.world.relay.match, self.world.relay.deaf = "", self.random.randint(1, 2)

    @precondition(lambda self: self.saved)
    @rule()
    def forgets_what_is_on_the_node_too(self) -> None:
        """A pack or a manifest that it has shown; not the only copy."""
        artifact = self._one()
        if not self.world.is_near(artifact):
            return
        keys = [layout.manifest_key(artifact)]
        with suppress(KybernateError):
            packs = {one.id for one in read_manifest(self.world.truth, artifact, KEYS).packs}
            keys += [f"{layout.PACKS}team-a/{one}" for one in packs - self._alone()]
        self.world.loses(self.random.choice(keys))

    def _alone(self) -> set[str]:
        """Packs of states that are nowhere else."""
        far = [one for one in self.saved if not self.world.is_near(one)]
        read = (read_manifest(self.world.truth, one, KEYS) for one in far)
        return {pack.id for found in read for pack in found.packs}

    @rule()
    def keeps_its_word(self) -> None:
        self.world.relay.heal()

    @invariant()
    def nothing_is_lost(self) -> None:
        for artifact in getattr(self, "saved", ()):
            assert self.world.is_near(artifact) or self.world.is_far(artifact), artifact


def test_whatever_the_store_does_nothing_is_lost(server):
    case = Fickleness.TestCase
    case.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
    case().runTest()


def test_a_changed_manifest_is_never_believed(world):
    artifact, _ = world.seal(1)
    assert world.run(world.vault.pack(artifact, Tier.OBJECT, 60)) is None
    other, _ = world.seal(2)
    assert world.run(world.vault.pack(other, Tier.OBJECT, 60)) is None
    signed = bytes(world.truth.objects.get(layout.manifest_key(artifact)))
    world.truth.objects.put(layout.manifest_key(other), signed)
    with pytest.raises(CorruptError, match="is that of"):
        read_manifest(world.far, other, KEYS)
