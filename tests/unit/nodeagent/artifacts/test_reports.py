"""What the registry is told: in order, again and again, and over restarts of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import asdict, replace

import pytest

from kybernate.core.artifacts.into import Container, Into, why_refused
from kybernate.core.artifacts.manifest import PACKED, VERSION, Facts, Manifest
from kybernate.core.artifacts.match import UNKNOWN, Target, mismatches
from kybernate.core.artifacts.privileges import Privileges
from kybernate.errors import (
    ConflictError,
    DeadlineError,
    LeaveError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.ports import Line
from kybernate.types import PodRef, Tier, of_record
from nodeagent.artifacts.lines import OwnSuccession
from nodeagent.artifacts.reporting import ReportingVault
from nodeagent.artifacts.reports import REPORT, Kind, Report, ReportQueue
from tests.kit import machine as fakes
from tests.kit.clock import run_virtual

SAVED = "team-a/llama-0@20260131T120000Z-00c0ffee"
FACTS = Facts(
    *("team-a", "llama-0", "u1", "main", "sha256:1", "9f2c", "6.18.5", "4.2.1", "x86_64", 300),
    Privileges((0,), (0,), bounding=0xFF, seccomp=2),
    root_pid=2,
)
MANIFEST = Manifest(VERSION, SAVED, "2026-01-31T12:00:00Z", PACKED, FACTS, (), 0, 0)
TARGET = Target("sha256:1", "9f2c", "6.18.5", "4.2.1", "x86_64")


class Registry:
    """Notes what it is told. `away`: so many calls get no answer; `knows`: pods with a lease."""

    def __init__(self, away: int = 0) -> None:
        self.said: list[tuple[object, ...]] = []
        self.away = away
        self.knows: set[str] = set()
        self.token = 0

    def _called(self, *what: object) -> None:
        if self.away:
            self.away -= 1
            raise DeadlineError("no answer")
        self.said.append(what)

    async def lease(self, namespace, uid, seconds, deadline):
        self._called("lease", uid)
        self.knows.add(uid)
        self.token += 1
        return self.token

    async def record(self, manifest, tier, token, deadline, *, person_hold=False):
        self._called("record", manifest.id, tier, token, *(["held"] if person_hold else []))
        if token != self.token:
            raise ConflictError("another writer has begun")

    async def report(self, manifest, tier, deadline, *, verified=True):
        self._called("report", tier, verified)

    async def drop(self, artifact, tier, deadline, *, forget=""):
        self._called("drop", tier, forget)

    async def stop(self, namespace, uid, why, deadline):
        self._called("stop", uid)
        if uid not in self.knows:
            raise RefusedError("no agent has said that it runs on its node")

    async def claim(self, namespace, uid, artifact, successor, deadline, *, again=False):
        self._called("claim", uid, successor, again)

    async def hand_back(self, namespace, uid, successor, deadline):
        self._called("hand back", uid, successor)

    async def line(self, namespace, uid, deadline):
        return Line()


async def manifest_of(artifact, deadline):
    if artifact != SAVED:
        raise NotFoundError(f"{artifact} is gone")
    return MANIFEST


def telling(machine, registry, *reports):
    """All of them told by one agent, or as many as it takes to be cut off."""

    async def main():
        journal = fakes.FakeJournal(machine)
        queue = ReportQueue(journal, registry, manifest_of)
        queue.load(journal.load())
        for report in reports:
            queue.put(report)
        task = asyncio.ensure_future(queue.run())
        await queue.flush(1000)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run_virtual(main())


def of(kind, tier=Tier.NVME, why=""):
    return Report(kind, artifact=SAVED, tier=tier.value, why=why)


@pytest.fixture
def machine():
    return fakes.Machine({})


def test_it_is_told_in_order_and_with_a_lease(machine):
    registry = Registry(away=3)
    telling(
        machine,
        registry,
        of(Kind.SEALED),
        of(Kind.COPYING, Tier.OBJECT),
        of(Kind.COPIED, Tier.OBJECT),
        of(Kind.DROPPED, why="it has continued"),
        Report(Kind.STOPPED, "team-a", "u1", why="its pod is gone"),
    )
    assert registry.said == [
        ("lease", "u1"),
        ("record", SAVED, Tier.NVME, 1),
        ("report", Tier.OBJECT, False),
        ("report", Tier.OBJECT, True),
        ("drop", Tier.NVME, "it has continued"),
        ("stop", "u1"),
    ]
    assert not any(key.startswith(REPORT) for key in machine.journal)


def test_what_the_last_agent_had_yet_to_tell_comes_first(machine):
    async def cut_off():
        queue = ReportQueue(fakes.FakeJournal(machine), Registry(away=10**6), manifest_of)
        queue.put(of(Kind.SEALED))
        queue.put(of(Kind.COPIED, Tier.OBJECT))
        with pytest.raises(DeadlineError, match="not told of 2 things"):
            await queue.flush(5)

    run_virtual(cut_off())
    registry = Registry()
    telling(machine, registry, of(Kind.DROPPED))
    assert [one[0] for one in registry.said] == ["lease", "record", "report", "drop"]


def test_that_people_keep_it_is_told_with_the_artifact(machine):
    registry = Registry()
    telling(machine, registry, replace(of(Kind.SEALED, Tier.OBJECT), person_hold=True))
    assert registry.said == [("lease", "u1"), ("record", SAVED, Tier.OBJECT, 1, "held")]


def test_an_agent_of_before_tells_the_copy_and_what_it_wrote_is_read(machine):
    """It passes over what it doesn't know; and its own reports lack that."""
    record = asdict(of(Kind.SEALED, Tier.OBJECT))
    assert of_record(Report, {**record, "later": 1}) == of(Kind.SEALED, Tier.OBJECT)
    del record["person_hold"]
    machine.journal[f"{REPORT}{1:016d}"] = record
    registry = Registry()
    telling(machine, registry)
    assert registry.said == [("lease", "u1"), ("record", SAVED, Tier.OBJECT, 1)]


def test_a_no_is_left_and_holds_up_nothing(machine):
    registry = Registry()
    gone = Report(Kind.SEALED, artifact=SAVED.replace("c0ffee", "c0fffe"), tier="nvme")
    telling(machine, registry, gone, of(Kind.COPIED, Tier.OBJECT))
    assert registry.said == [("report", Tier.OBJECT, True)]


class Unreadable:
    """Says nothing of one artifact until it is `well`."""

    def __init__(self) -> None:
        self.well = False

    async def __call__(self, artifact, deadline):
        if artifact == SAVED and not self.well:
            raise OSError(5, "Input/output error")
        return MANIFEST


MINE, OTHER = PodRef("team-a", "llama-0", "u1"), PodRef("team-a", "birch-0", "u2")
BIRCH = "team-a/birch-0@20260131T120000Z-00c0ffee"


def stopped(pod, **more):
    return Report(Kind.STOPPED, pod.namespace, pod.uid, pod=pod.name, why="its pod is gone", **more)


async def test_one_that_can_not_be_read_for_holds_up_its_own_pods_reports_alone(machine):
    registry, manifest = Registry(), Unreadable()
    registry.knows |= {"u1", "u2"}
    queue = ReportQueue(fakes.FakeJournal(machine), registry, manifest)
    queue.put(of(Kind.SEALED))
    queue.put(of(Kind.DROPPED, why="it has continued"))
    queue.put(stopped(MINE))
    queue.put(Report(Kind.COPIED, artifact=BIRCH, tier="object"))
    queue.put(stopped(OTHER))
    task = asyncio.create_task(queue.run())
    await queue.flush(10, OTHER)
    assert registry.said == [("report", Tier.OBJECT, True), ("stop", "u2")]
    queue.put(Report(Kind.DROPPED, artifact=BIRCH, tier="object", why="gone"))
    await queue.flush(10, OTHER)
    for pod in (MINE, None):
        with pytest.raises(DeadlineError, match="not told of 3 things"):
            await queue.flush(100, pod)
    manifest.well = True
    await queue.flush(100)
    assert [one[0] for one in registry.said[3:]] == ["lease", "record", "drop", "stop"]
    assert not any(key.startswith(REPORT) for key in machine.journal)
    task.cancel()


@pytest.mark.parametrize(
    "report",
    [
        Report(Kind.CLAIMED, "team-a", "u1", SAVED, successor="u2"),
        Report(Kind.STOPPED, "team-a", "u1", why="by an agent that doesn't name its pod"),
        stopped(OTHER, hands_back="u1"),
    ],
)
async def test_what_may_be_about_a_pod_of_one_that_can_not_be_read_for_waits_for_it(
    machine, report
):
    registry, manifest = Registry(), Unreadable()
    registry.knows |= {"u1", "u2"}
    queue = ReportQueue(fakes.FakeJournal(machine), registry, manifest)
    queue.put(of(Kind.COPIED, Tier.OBJECT))
    queue.put(report)
    queue.put(stopped(PodRef("team-b", "x", "u9")))
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(100)
    assert [one for one in registry.said if one[0] != "lease"] == [("stop", "u9")] * 2
    manifest.well = True
    await queue.flush(100)
    assert registry.said[3] == ("report", Tier.OBJECT, True)
    task.cancel()


async def test_a_registry_that_is_away_is_not_asked_without_a_pause_for_what_was_read_late(machine):
    registry, manifest = Registry(), Unreadable()
    queue = ReportQueue(fakes.FakeJournal(machine), registry, manifest)
    queue.put(of(Kind.COPIED, Tier.OBJECT))
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(10)
    manifest.well, registry.away = True, 10**6
    await asyncio.sleep(600)
    assert 10**6 - registry.away < 40
    registry.away = 0
    await queue.flush(100)
    assert registry.said == [("report", Tier.OBJECT, True)]
    task.cancel()


def test_a_pod_that_the_registry_never_heard_of_is_made_known_first(machine):
    registry = Registry()
    telling(machine, registry, Report(Kind.STOPPED, "team-a", "u2", why="gone"))
    assert registry.said == [("stop", "u2"), ("lease", "u2"), ("stop", "u2")]


def test_that_a_state_is_dropped_may_be_told_twice(machine, caplog):
    class Forgets(Registry):
        async def drop(self, artifact, tier, deadline, *, forget=""):
            raise NotFoundError("it is not known")

    with caplog.at_level(logging.WARNING):
        telling(machine, Forgets(), of(Kind.DROPPED, why="why"))
    assert (machine.journal, caplog.records) == ({}, [])


def test_a_claim_is_told_again(machine):
    registry = Registry()
    telling(machine, registry, Report(Kind.CLAIMED, "team-a", "u1", SAVED, successor="u2"))
    assert registry.said == [("claim", "u1", "u2", True)]


async def test_a_pod_is_made_known_where_the_store_gives_no_leave(machine):
    """What its state is read for, and of what is packed whose it is; once, and no more."""

    class Locked:
        def __init__(self, registry) -> None:
            self.registry, self.done = registry, []

        def _see(self, what, uid) -> None:
            if uid not in self.registry.knows:
                raise LeaveError("no lease or claim")
            self.done.append(what)

        async def admit(self, artifact, into, deadline):
            self._see("admit", into.uid)
            return MANIFEST

        async def fetch(self, artifact, images, deadline, into, progress=None, laid_out=None):
            self._see("fetch", into.uid)
            return MANIFEST

        async def pack(self, artifact, place, deadline, progress=None):
            self._see("pack", MANIFEST.facts.pod_uid)

        async def manifest(self, artifact, deadline):
            return MANIFEST

    class Deaf(set):
        def add(self, _uid) -> None:
            pass

    registry = Registry()
    reports = ReportQueue(fakes.FakeJournal(machine), registry, manifest_of)
    vault = ReportingVault(Locked(registry), reports)
    into = Into("team-b", "u2")
    await vault.admit(SAVED, into, 10)
    await vault.fetch(SAVED, None, 10, into)
    await vault.pack(SAVED, Tier.OBJECT, 10)
    assert vault._vault.done == ["admit", "fetch", "pack"]
    assert registry.said == [("lease", "u2"), ("lease", "u1")]
    registry.knows = Deaf()
    with pytest.raises(LeaveError):
        await vault.admit(SAVED, into, 10)


async def test_the_vault_tells_by_itself(machine):
    class Told:
        def __init__(self) -> None:
            self.reports: list[Report] = []

        def put(self, report: Report) -> None:
            self.reports.append(report)

    class Kept:
        async def drop(self, artifact, place, *, forget=""):
            if not forget:
                raise RefusedError("the last verified one")
            if place is Tier.OBJECT:
                raise RetryableError("it does not answer")

        async def pack(self, artifact, place, deadline, progress=None):
            pass

        async def seal(self, images, facts, deadline):
            return SAVED

    told = Told()
    vault = ReportingVault(Kept(), told)
    await vault.seal(None, {}, 1)
    await vault.pack(SAVED, Tier.OBJECT, 1)
    with pytest.raises(RefusedError):
        await vault.drop(SAVED, Tier.NVME)
    await vault.drop(SAVED, Tier.NVME, forget="why")
    with pytest.raises(RetryableError):
        await vault.drop(SAVED, Tier.OBJECT, forget="nobody may continue from it, though it stays")
    assert [(one.kind, one.tier) for one in told.reports] == [
        (Kind.SEALED, "nvme"),
        (Kind.COPYING, "object"),
        (Kind.COPIED, "object"),
        (Kind.DROPPED, "nvme"),
        (Kind.COPIED, "nvme"),
        (Kind.DROPPED, "nvme"),
        (Kind.DROPPED, "object"),
    ]


async def test_without_a_registry_only_what_stopped_here_is_succeeded_and_once(machine):
    class World:
        journal = fakes.FakeJournal(machine)

        @staticmethod
        def wall():
            return 1000.0

    lines = OwnSuccession(World, "n1")
    with pytest.raises(ConflictError, match="nothing proves"):
        await lines.claim("team-a", "u1", SAVED, "u2", 1)
    await lines.stop("team-a", "u1", "gone", 1)
    await lines.claim("team-a", "u1", SAVED, "u2", 1)
    again = OwnSuccession(World, "n1")
    again.load(World.journal.load())
    await again.claim("team-a", "u1", SAVED, "u2", 1)
    with pytest.raises(ConflictError, match="holds the claim"):
        await again.claim("team-a", "u1", SAVED, "u3", 1)
    assert (await again.line("team-a", "u1", 1)).successor == "u2"
    assert (await again.line("team-b", "u1", 1)) == Line()


def into(namespace="team-a", uid="u2", target=TARGET, **privileges):
    mine = {"uids": (0,), "gids": (0,), "bounding": 0xFF, "seccomp": 2, **privileges}
    return Into(namespace, uid, Container(target, Privileges(**mine)))


def test_a_state_goes_into_what_it_was_saved_from_and_its_like():
    assert why_refused(MANIFEST, Into("team-a", "u1"), 0.0) == ()
    assert why_refused(MANIFEST, into(), 0.0) == ()


@pytest.mark.parametrize(
    ("there", "word"),
    [
        (Into("team-a", "u2"), "not of u2"),
        (Into("team-b", "u1"), "not of u1"),
        (into(namespace="team-b"), "ArtifactGrant"),
        (into(bounding=0, uids=(1,)), "user 0"),
        (into(target=Target("sha256:2", "9f2c", "6.18.5", "4.2.1", "x86_64")), "from image"),
        (into(target=Target("sha256:1", "other", "6.18.5", "4.2.1", "x86_64")), "otherwise"),
        (into(target=Target("sha256:1", "9f2c", "6.17", "4.2.1", "x86_64")), "kernel 6.18.5"),
    ],
)
def test_what_stands_against_it_is_told(there, word):
    against = why_refused(MANIFEST, there, 0.0)
    assert any(word in one.sentence for one in against), against


def test_an_image_that_nobody_named_equals_none():
    unknown = Target(UNKNOWN, "9f2c", "6.18.5", "4.2.1", "x86_64")
    assert "did not tell" in mismatches(FACTS, unknown)[0].sentence


UNUSED = Report(Kind.STOPPED, "team-a", "u2", why="its pod is gone", hands_back="u1")


def test_a_claim_with_which_a_pod_never_continued_goes_back_in_one_with_its_stop(machine):
    registry = Registry(away=1)
    registry.knows.add("u2")
    telling(machine, registry, UNUSED)
    assert registry.said == [("hand back", "u1", "u2"), ("stop", "u2")]


def test_a_registry_of_before_is_told_of_the_stop_first(machine):
    class Wants(Registry):
        async def hand_back(self, namespace, uid, successor, deadline):
            before = [*self.said]
            self._called("hand back", uid, successor)
            if ("stop", successor) not in before:
                raise ConflictError(f"nothing proves that pod {successor} stopped")

    registry = Wants()
    registry.knows.add("u2")
    telling(machine, registry, UNUSED)
    assert [one[0] for one in registry.said] == ["hand back", "stop", "hand back"]


def test_who_has_no_claim_has_stopped_all_the_same(machine):
    class Refuses(Registry):
        async def hand_back(self, namespace, uid, successor, deadline):
            raise RefusedError(f"pod {uid} is another node's")

    registry = Refuses()
    telling(machine, registry, UNUSED)
    assert registry.said == [("stop", "u2"), ("lease", "u2"), ("stop", "u2")]
