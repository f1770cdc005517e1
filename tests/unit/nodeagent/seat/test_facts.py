"""What a manifest says of a seat, of a real process of this machine's."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kybernate.core.artifacts.grants import Grant
from kybernate.core.artifacts.manifest import facts_of
from kybernate.core.artifacts.match import UNKNOWN
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.errors import NotFoundError, RetryableError
from kybernate.settings.agent import AgentSettings
from kybernate.types import GpuUuid, GroupName, PodRef, PodUid, SeatName
from nodeagent.seat.facts import Facts
from nodeagent.seat.parts.tree import Process
from nodeagent.seat.record import Seat, SeatIdentity, from_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GPU = GpuUuid("GPU-0")


class Still:
    """A process whose threads don't come and go, as those of the tests' own do."""

    pid = 0


@pytest.fixture(autouse=True, scope="module")
def still() -> Iterator[None]:
    with subprocess.Popen(["sleep", "600"]) as made:
        Still.pid = made.pid
        yield
        made.kill()


class Images:
    """The runtime; `answers` are digests, or errors."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)

    async def digest_of(self, uid: PodUid, container: str) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Freezer:
    def pids(self, handle: str) -> tuple[int, ...]:
        return (Still.pid,)


def seat(**more: object) -> Seat:
    identity = SeatIdentity(
        PodRef("team-a", "llama-0", PodUid("u1")),
        *("main", "kyb.ai/gpu-1x-seat", "token", SeatName("G0-seat-1"), GroupName("G0")),
        gpus=(GPU,),
        vram=None,
        model="llama",
        image="llama:1",
    )
    found = Seat(identity, 0.0, 0.0)
    found.wishes.spec_hash = "9f2c"
    found.tree.init = found.tree.root = Process(Still.pid, 1)
    found.tree.held, found.tree.inner = {GPU: 5}, (7,)
    for name, value in more.items():
        part = next(p for p in (found.tree, found.saved, found.wishes) if hasattr(p, name))
        setattr(part, name, value)
    return found


def facts(tmp_path: Path, *answers: str | Exception, missing: str = "") -> Facts:
    settings = AgentSettings(node="n1", state_dir=tmp_path)
    return Facts(settings, Freezer(), lambda: None, Images(*answers), "4.2.1", lambda _: missing)


def told(made: Facts, one: Seat):
    return facts_of(asyncio.run(made(one)))


def test_the_manifest_says_what_another_container_must_be(tmp_path: Path) -> None:
    found = told(facts(tmp_path, "sha256:1", missing="Too much."), seat(first=4))
    assert (found.image_digest, found.spec_hash, found.pod_uid) == ("sha256:1", "9f2c", "u1")
    assert (found.gpus, found.held, found.first, found.gpu_pids) == ((GPU,), (5,), 4, (7,))
    assert found.root_pid == Still.pid
    assert os.geteuid() in found.privileges.uids
    assert found.files_missing == "Too much."


def test_until_it_is_woken_its_gpu_memory_is_that_of_the_gpus_it_came_from(tmp_path: Path) -> None:
    found = told(facts(tmp_path, "sha256:1"), seat(gpu_map={GpuUuid("GPU-9"): GPU}))
    assert (found.gpus, found.held) == (("GPU-9",), (5,))


def test_the_runtime_is_asked_once_for_each_container(tmp_path: Path) -> None:
    made, one = facts(tmp_path, "sha256:1", "sha256:2"), seat()
    assert [told(made, one).image_digest for _ in range(3)] == ["sha256:1"] * 3
    one.tree.init = Process(Still.pid, 2)
    assert told(made, one).image_digest == "sha256:2"


def test_a_runtime_that_is_away_holds_up_no_park_and_no_wake_in_place(tmp_path: Path) -> None:
    made = facts(tmp_path, RetryableError("away"), RetryableError("away"))
    assert told(made, seat()).image_digest == UNKNOWN
    into = asyncio.run(made.into(seat()))
    assert (into.parked, into.container.target.image_digest) == (True, UNKNOWN)


@pytest.mark.parametrize("more", [{"restore": RestoreWish(uid=PodUid("u0"))}, {"borrowed": True}])
def test_anothers_state_is_held_against_the_container(tmp_path: Path, more: dict) -> None:
    into = asyncio.run(facts(tmp_path, "sha256:1").into(seat(**more)))
    assert into.container is not None
    assert into.container.target.image_digest == "sha256:1"
    assert os.geteuid() in into.container.privileges.uids
    assert into.container.grants() == ()
    for answer in (RetryableError("away"), NotFoundError("it has no one container main of u1")):
        with pytest.raises(RetryableError):
            asyncio.run(facts(tmp_path, answer).into(seat(**more)))


def test_what_is_granted_is_asked_when_it_is_needed(tmp_path: Path) -> None:
    made, granted = facts(tmp_path, "sha256:1"), [Grant("team-b", ("team-a",), ("*",))]
    made._grants = lambda: tuple(granted)
    into = asyncio.run(made.into(seat(borrowed=True)))
    assert into.container.grants() == tuple(granted)
    granted.clear()
    assert into.container.grants() == ()


def test_a_container_that_has_ended_has_no_facts(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        asyncio.run(facts(tmp_path)(seat(init=None)))
    with pytest.raises(NotFoundError):
        asyncio.run(facts(tmp_path).into(seat(init=None, borrowed=True)))


def test_it_says_which_namespace_of_its_name_it_is_of(tmp_path: Path) -> None:
    one = seat()
    one.identity = replace(one.identity, namespace_uid="u9")
    assert told(facts(tmp_path, "sha256:1"), one).namespace_uid == "u9"
    assert from_record(one.record()).identity.namespace_uid == "u9"
    of_before = {key: value for key, value in one.record().items() if key != "namespace_uid"}
    assert from_record(of_before).identity.namespace_uid == ""
