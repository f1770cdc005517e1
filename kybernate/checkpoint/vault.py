"""The artifacts of one node: `ports.Vault` over its places.

Every call runs in threads of its own and looks at its deadline between steps; a call that is
cancelled ends at its next step, and what it has done so far is kept.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kybernate.checkpoint import begun, catalogue, crashed, verify
from kybernate.checkpoint.copies import Copies, is_unreadable
from kybernate.checkpoint.delivery import transfer
from kybernate.checkpoint.packs import fetch
from kybernate.checkpoint.packs.named import Names
from kybernate.checkpoint.places import read_manifest
from kybernate.checkpoint.raw import lending
from kybernate.checkpoint.raw import seal as sealing
from kybernate.checkpoint.raw.stream import Seen
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.into import why_refused
from kybernate.core.artifacts.misfits import Against, Misfit, refusal
from kybernate.core.artifacts.placed import why_keep
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.deadline import Deadline
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.ports import Sealed
from kybernate.types import PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.into import Into
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import ArtifactId

log = logging.getLogger(__name__)

R = TypeVar("R")

URGENT = 8
BACKGROUND = 2
_LATE = 5.0
"""Seconds that the threads of a call have to notice its deadline before they are left alone."""
_PATIENCE = 300.0
_HANGS = (
    "an earlier call for {name} still hangs at the disk or store of the artifacts; see to that "
    "first"
)


class Vault:
    """Implements `ports.Vault`. `local` is the place where dumps are made and lie raw.

    Its threads are its own, and what a wake waits for never queues behind packing and verifying,
    of which `BACKGROUND` are under way at most: each may take some 100 MiB.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is made once
        self,
        places: Mapping[Tier, Place],
        local: Tier,
        keys: ArtifactKeys,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seen: Seen | None = None,
        left: Callable[[Path], Awaitable[None]] | None = None,
        beside: Place | None = None,
    ) -> None:
        """`left` returns once nobody writes into a folder of images that is to be removed.
        `beside`: copies of what a store has, of which the vault reads alone."""
        self._places = places
        self._beside = beside
        self._local = places[local]
        self._keys = keys
        self._now = now
        self._seen = seen or Seen()
        self._names = Names()
        self._left = left
        self._believed: dict[tuple[str, str], str] = {}
        """The content that was recorded of artifacts, by the node whose word was asked about."""
        self.patience = _PATIENCE
        """Seconds for each call that has no deadline of its caller's."""
        self._half_dropped: set[str] = set()
        # A disk that hangs keeps a thread after its caller was told so; when it answers again, that
        # thread must not continue with what the caller has begun since.
        self._alone = KeyedLocks[str, threading.Lock](threading.Lock)
        self._doubtful: set[tuple[str, str]] = set()
        self._urgent = ThreadPoolExecutor(URGENT, thread_name_prefix="vault")
        self._background = ThreadPoolExecutor(BACKGROUND, thread_name_prefix="vault-background")
        if left_behind := crashed.half_made(self._local):
            self._background.submit(crashed.remove, left_behind)

    async def begin(self, uid: PodUid) -> Path:
        """See `ports.Vault.begin`."""
        folder = begun.folder_of(self._local, uid)
        await self._see_left(folder)
        self._seen.hashed.pop(folder, None)
        await self._soon(folder.name, lambda _: begun.empty(folder))
        return folder

    async def abandon(self, uid: PodUid) -> None:
        """See `ports.Vault.abandon`."""
        folder = begun.folder_of(self._local, uid)
        await self._see_left(folder)
        await self._soon(folder.name, lambda _: begun.remove(folder))

    async def lent(self, uid: PodUid) -> str:
        """See `ports.Vault.lent`."""
        folder = begun.folder_of(self._local, uid)
        return await _run(self._urgent, self.patience, lambda _: lending.lent_of(folder))

    async def begun(self) -> tuple[PodUid, ...]:
        """See `ports.Vault.begun`."""
        return await _run(self._urgent, self.patience, lambda _: begun.uids(self._local))

    async def seal(self, images: Path, facts: Mapping[str, object], deadline: float) -> ArtifactId:
        """See `ports.Vault.seal`."""
        told, now = manifests.facts_of(facts), self._now()
        artifact = layout.make_id(told.namespace, told.pod, now, _salt(now))
        draft, hashed = sealing.draft(artifact, told, now), self._seen.hashed.pop(images, None)
        named = self._names.next_of(told.pod_uid, artifact) if hashed is None else None

        def sealed(until: Deadline) -> None:
            sealing.seal(self._local, images, draft, self._keys, until, hashed, named)
            if named is not None:
                self._names.sealed(told.pod_uid, named)

        await _run(self._urgent, deadline, sealed)
        return artifact

    async def admit(self, artifact: ArtifactId, into: Into, deadline: float) -> Manifest:
        """See `ports.Vault.admit`."""

        def admitted(_: Deadline) -> Manifest:
            manifest = self._nearest(artifact)[1]
            self._see_admitted(manifest, into)
            return manifest

        return await _run(self._urgent, deadline, admitted)

    async def images(self, artifact: ArtifactId, deadline: float, into: Into) -> Path:
        """See `ports.Vault.images`."""

        def checked(until: Deadline) -> Path:
            with self._unless_another(artifact):
                manifest = self._admitted(artifact, into)
                folder = sealing.images_of(self._local, manifest)
                if artifact in self._seen.verified:
                    self._seen.verified.discard(artifact)
                else:
                    self._verify(self._local, manifest, until)
                return folder

        return await _run(self._urgent, deadline, checked)

    async def lend(self, artifact: ArtifactId, uid: PodUid, deadline: float, into: Into) -> Path:
        """See `ports.Vault.lend`."""
        folder = await self.begin(uid)
        if artifact in self._seen.verified:
            return await self.images(artifact, deadline, into)

        def lent(until: Deadline) -> bool:
            with self._unless_another(artifact):
                manifest = self._admitted(artifact, into)
                return lending.lay_out(self._local, manifest, folder, until)

        if await _run(self._urgent, deadline, lent):
            return folder
        await self.begin(uid)
        return await self.images(artifact, deadline, into)

    async def fill(self, artifact: ArtifactId, uid: PodUid, deadline: float) -> None:
        """See `ports.Vault.fill`."""
        folder = begun.folder_of(self._local, uid)
        others = [place for place in self._readable() if place is not self._local]

        def filled(until: Deadline) -> None:
            try:
                lending.fill(artifact, folder, others, self._keys, until)
            except (CorruptError, OSError) as error:
                self._doubt(self._local, artifact, error)
                raise

        await _run(self._urgent, deadline, filled)

    async def pack(
        self,
        artifact: ArtifactId,
        place: Tier,
        deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """See `ports.Vault.pack`."""
        target = self._place(place)

        def packed(until: Deadline) -> None:
            found = self._packed(artifact, target)
            if found is not None and self._sure(target, found):
                return
            source, manifest = self._first(artifact, but=target)
            keys = self._keys
            # It isn't whole, and would stay as it is, whatever is packed.
            over = None if found is None else partial(drop, target, found)
            named = self._names.of(manifest.facts.pod_uid, artifact)
            given = until, progress, named, over
            made = transfer.copy(artifact, (source, keys), (target, keys), *given)
            self._doubtful.discard((target.name, artifact))
            with suppress(KybernateError, OSError):  # the next one is packed without
                self._names.packed(made, keys)

        await _run(self._background, deadline, packed)

    async def fetch(
        self,
        artifact: ArtifactId,
        images: Path,
        deadline: float,
        into: Into,
        progress: Callable[[int], None] | None = None,
        laid_out: Callable[[], None] | None = None,
    ) -> Manifest:
        """See `ports.Vault.fetch`."""
        told = threading.Event()

        def begins() -> None:
            told.set()
            (laid_out or bool)()

        def fetched(until: Deadline) -> Manifest:
            copies = self._near(artifact)
            for place, manifest in copies:
                self._see_admitted(manifest, into)
                try:
                    self._bring(place, manifest, images, until, progress, laid_out and begins)
                    log.info("%s is fetched from %s", artifact, place.name)
                except (CorruptError, RefusedError, RetryableError, OSError) as error:
                    if isinstance(error, OSError) and not is_unreadable(error):
                        raise
                    self._doubt(place, artifact, error)
                    if told.is_set():
                        # Somebody has read what came from there: another copy changes nothing.
                        raise
                    copies.problems.append(error)
                else:
                    return manifest
            raise copies.why_none()

        return await _run(self._urgent, deadline, fetched)

    async def verify(self, artifact: ArtifactId, place: Tier, deadline: float) -> None:
        """See `ports.Vault.verify`."""
        where = self._place(place)

        def verified(until: Deadline) -> None:
            self._verify(where, read_manifest(where, artifact, self._keys), until)

        await _run(self._background, deadline, verified)

    async def drop(self, artifact: ArtifactId, place: Tier, *, forget: str = "") -> None:
        """See `ports.Vault.drop`."""
        where = self._place(place)
        await self._soon(artifact, lambda until: self._drop(artifact, where, forget, until))

    async def ls(self, place: Tier) -> tuple[Sealed, ...]:
        """See `ports.Vault.ls`."""
        where = self._place(place)
        return await _run(self._urgent, self.patience, lambda until: self._ls(where, until))

    async def manifest(self, artifact: ArtifactId, deadline: float) -> Manifest:
        """See `ports.Vault.manifest`."""

        return (await _run(self._urgent, deadline, lambda _: self._nearest(artifact)))[1]

    def close(self) -> None:
        """Begin nothing more; what is under way ends at its deadline, or when it is cancelled."""
        for pool in (self._urgent, self._background):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _soon(self, name: str, work: Callable[[Deadline], None]) -> None:
        """What has no deadline of its caller's, one at a time for each name."""

        def alone(until: Deadline) -> None:
            with until.holding(self._alone[name], _HANGS.format(name=name)):
                work(until)

        await _run(self._urgent, self.patience, alone)

    async def _see_left(self, folder: Path) -> None:
        if self._left is not None:
            await self._left(folder)

    def _packed(self, artifact: ArtifactId, target: Place) -> Manifest | None:
        """What is there already; a manifest that isn't ours is none."""
        with suppress(NotFoundError, CorruptError, RefusedError):
            return read_manifest(target, artifact, self._keys)
        return None

    def _place(self, tier: Tier) -> Place:
        try:
            return self._places[tier]
        except KeyError:
            raise RefusedError(f"this node has no place {tier}; configure it first") from None

    def _ordered(self) -> list[Place]:
        """The node's own places, the fastest first."""
        return [self._places[t] for t in sorted(self._places, key=list(Tier).index)]

    def _readable(self) -> list[Place]:
        """All that may be read from, the fastest first."""
        own = self._ordered()
        return [own[0], self._beside, *own[1:]] if self._beside is not None else own

    def _copies(self, artifact: ArtifactId, but: Place | None = None) -> Copies:
        """In the node's own places, doubtful copies last: by these is decided what may go."""
        return self._of(artifact, [place for place in self._ordered() if place is not but])

    def _near(self, artifact: ArtifactId) -> Copies:
        """All copies that may be read, doubtful ones last."""
        return self._of(artifact, self._readable())

    def _of(self, artifact: ArtifactId, places: list[Place]) -> Copies:
        order = sorted(places, key=lambda place: (place.name, artifact) in self._doubtful)
        return Copies(order, artifact, self._keys)

    def _first(self, artifact: ArtifactId, but: Place | None = None) -> tuple[Place, Manifest]:
        """Where to take it from. Raises NotFoundError, or why no copy can be had."""
        return _first_of(self._copies(artifact, but))

    def _nearest(self, artifact: ArtifactId) -> tuple[Place, Manifest]:
        """Where to read it. Raises as `_first`."""
        return _first_of(self._near(artifact))

    @contextmanager
    def _unless_another(self, artifact: ArtifactId) -> Iterator[None]:
        """Raises CorruptError for a raw copy that can't be read where another copy can be had."""
        try:
            yield
        except CorruptError as error:
            self._doubt(self._local, artifact, error)
            raise
        except OSError as error:
            others = self._copies(artifact, but=self._local)
            if is_unreadable(error) and next(iter(others), None):
                raise CorruptError(
                    f"{artifact} can't be read in {self._local.name}: {error}"
                ) from error
            raise

    def _bring(
        self,
        place: Place,
        manifest: Manifest,
        images: Path,
        until: Deadline,
        progress: Callable[[int], None] | None,
        laid_out: Callable[[], None] | None,
    ) -> None:
        if manifest.form == manifests.RAW:
            sealing.copy_raw(place, manifest, images, until, progress)
        else:
            recorded = self._believed.get((manifest.id, manifest.node), "")
            given = self._keys, until, recorded, progress, laid_out
            fetch.fetch(place, manifest, images, *given)

    def _admitted(self, artifact: ArtifactId, into: Into) -> Manifest:
        """The local copy's manifest."""
        manifest = read_manifest(self._local, artifact, self._keys)
        self._see_admitted(manifest, into)
        return manifest

    def _see_admitted(self, manifest: Manifest, into: Into) -> None:
        """Raise RefusedError with all that stands against restoring it there."""
        self._see_believed(manifest, into)
        if against := why_refused(manifest, into, self._now().timestamp()):
            raise refusal(against)

    def _see_believed(self, manifest: Manifest, into: Into) -> None:
        """A shared key's word, and this node's own, is believed as it is; another node's of what
        this node had no part in once somebody else says that it wrote that. What another pod's
        state is that a seat is parked on was seen when the seat took it over."""
        node, facts = manifest.node, manifest.facts
        known = (manifest.id, node)
        own = (facts.namespace, facts.pod_uid) == (into.namespace, into.uid)
        if node in ("", self._keys.own):
            return
        if known not in self._believed:
            if into.parked and not own:
                return
            self._believed[known] = self._keys.see_believed(manifest)
        recorded, told = self._believed[known], manifests.content(manifest.files)
        if recorded and told and told != recorded:
            said = (
                f"{manifest.id} was signed by node {node}, and its files are not those that the "
                "registry recorded when it was saved."
            )
            raise refusal((Against(Misfit.BELIEF, said),))

    def _verify(self, place: Place, manifest: Manifest, until: Deadline) -> None:
        try:
            verify.verify(place, manifest, self._keys, until)
        except (CorruptError, RefusedError, OSError) as error:
            self._doubt(place, manifest.id, error)
            raise
        self._doubtful.discard((place.name, manifest.id))

    def _doubt(self, place: Place, artifact: str, error: KybernateError | OSError) -> None:
        if isinstance(error, (CorruptError, RefusedError)) or is_unreadable(error):
            self._doubtful.add((place.name, artifact))

    def _sure(self, place: Place, manifest: Manifest) -> bool:
        """Whether its copy there was verified and still seems whole. Raises as `verify.whole`."""
        return (place.name, manifest.id) not in self._doubtful and verify.whole(place, manifest)

    def _drop(self, artifact: ArtifactId, place: Place, forget: str, until: Deadline) -> None:
        try:
            manifest = read_manifest(place, artifact, self._keys)
        except NotFoundError:
            if artifact in self._half_dropped:
                sealing.drop_rest(place, artifact)
            return
        except (CorruptError, RefusedError, OSError) as error:
            if not forget or (isinstance(error, OSError) and not is_unreadable(error)):
                raise
            _drop_damaged(place, artifact)
            return
        copies = {place.name: True}
        if not forget:
            for other, found in self._copies(artifact, but=place):
                copies[other.name] = False
                with suppress(KybernateError, OSError):  # who can't say has none
                    copies[other.name] = self._sure(other, found)
        if sentence := why_keep(place.name, copies, forget):
            raise RefusedError(f"{artifact}: {sentence}")
        # By what was true a moment ago: not if its caller has continued without it.
        until.check()
        self._half_dropped.add(artifact)
        drop(place, manifest)
        self._half_dropped.discard(artifact)

    def _ls(self, place: Place, until: Deadline) -> tuple[Sealed, ...]:
        listed = []
        for found in catalogue.manifests(place, self._keys):
            until.check()
            uid = PodUid(found.manifest.facts.pod_uid if found.manifest else "")
            size = found.manifest.stored if found.manifest else 0
            sure = found.manifest is not None and (place.name, found.id) not in self._doubtful
            listed.append(Sealed(found.id, uid, size, sure, found.unread))
        return tuple(listed)


def _first_of(copies: Copies) -> tuple[Place, Manifest]:
    found = next(iter(copies), None)
    if found is None:
        raise copies.why_none()
    return found


def drop(place: Place, manifest: Manifest) -> None:
    """Remove an artifact from a place, without asking who needs it; packs are left to sweeps."""
    if manifest.form == manifests.RAW:
        sealing.drop_raw(place, manifest)
    else:
        place.objects.delete([layout.manifest_key(manifest.id)])


def _drop_damaged(place: Place, artifact: str) -> None:
    """What form it has nobody can tell any more."""
    place.objects.delete([layout.manifest_key(artifact)])
    sealing.drop_rest(place, artifact)


def _salt(now: datetime) -> int:
    """Of two states of one second the later one has the greater ID, too: whoever wants a pod's
    newest goes by that."""
    return now.microsecond << 12 | secrets.randbits(12)


async def _run(pool: Executor, seconds: float, work: Callable[[Deadline], R]) -> R:
    deadline = Deadline(seconds)
    done = asyncio.get_running_loop().run_in_executor(pool, work, deadline)
    try:
        return await asyncio.wait_for(done, seconds + _LATE)
    except TimeoutError as error:
        raise DeadlineError("the disk or store of the artifacts doesn't answer") from error
    finally:
        deadline.cancel()
