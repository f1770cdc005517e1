"""What people keep, once a successor on another node has continued from it: by two nodes' agents
and a registry."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.core.artifacts.holds import PersonHold, SuccessorHold
from kybernate.errors import NotFoundError
from kybernate.types import ArtifactId, PodUid, Tier
from nodeagent.artifacts.holds import Answer, Custody
from nodeagent.artifacts.reports import Kind, Report
from nodeagent.artifacts.succession import Inquiry
from nodeagent.seat.parts.saved import Begins, Saved
from tests.kit.machine import FakeJournal, FakeRegistry, Machine
from tests.kit.machine.elsewhere import Elsewhere

ONE = ArtifactId("ns/a@20260131T120000Z-00000001")
TWO = ArtifactId("ns/a@20260131T130000Z-00000002")
NVME, OBJECT = Tier.NVME, Tier.OBJECT
WHY = "its successor has continued since"


class Node:
    """One node's custody, whose reports are told when a test says so."""

    def __init__(self, name: str, elsewhere: Elsewhere) -> None:
        self.machine = Machine({}, name, elsewhere)
        self.registry = FakeRegistry(self.machine, elsewhere)
        self.reports: list[Report] = []
        self.dropped: list[tuple[str, Tier]] = []
        self.seats: dict[str, SimpleNamespace] = {}
        self.begin()

    def begin(self) -> None:
        journal = FakeJournal(self.machine)
        world = SimpleNamespace(
            journal=journal,
            offloading=SimpleNamespace(limits={NVME: 1, OBJECT: 1}, vault=self),
            registry=self.registry,
            wall=lambda: 1000.0,
            pinned=lambda _artifact: False,
        )
        settings = SimpleNamespace(keep_left_s=100.0, node=self.machine.name)
        self.node = SimpleNamespace(seats=self.seats, settings=settings, world=world)
        self.inquiry = Inquiry(self.node, self.registry)
        told = SimpleNamespace(put=self.reports.append)
        self.custody = Custody(self.node, lambda task: task.close(), told, self.inquiry)
        self.custody.load(journal.load())

    async def drop(self, artifact: ArtifactId, tier: Tier, *, forget: str = "") -> None:
        """See `ports.Vault.drop`."""
        self.dropped.append((artifact, tier))

    def seat(self, uid: str, **saved: object) -> None:
        self.seats[uid] = SimpleNamespace(
            uid=uid,
            saved=Saved(**saved),  # type: ignore[arg-type]
            state=None,
            wishes=SimpleNamespace(restore=None),
            awaits_state=False,
        )

    async def keep(self, artifact: ArtifactId, *tiers: Tier, uid: str = "u1") -> None:
        hold = PersonHold(artifact, f"save-{artifact}", PodUid(uid), dict.fromkeys(tiers, 7))
        await self.custody.keep(hold)

    def kept(self) -> list[tuple[Kind, str, str]]:
        """What was reported of what people keep."""
        return [(one.kind, one.artifact, one.tier) for one in self.reports if one.person_hold]

    async def tell(self) -> None:
        """The registry hears of all."""
        for one in self.reports:
            artifact, tier = ArtifactId(one.artifact), Tier(one.tier)
            if one.kind is Kind.DROPPED:
                await self.registry.drop(artifact, tier, 1, forget=one.why)
            else:
                token = await self.registry.lease("ns", PodUid("u1"), 60, 1)
                await self.registry.record(
                    manifest(artifact), tier, token, 1, person_hold=one.person_hold
                )
        self.reports.clear()


def manifest(artifact: str) -> SimpleNamespace:
    return SimpleNamespace(id=artifact, facts=SimpleNamespace(namespace="ns", pod_uid="u1"))


@pytest.fixture
def nodes() -> tuple[Node, Node]:
    elsewhere = Elsewhere()
    return Node("n1", elsewhere), Node("n2", elsewhere)


async def saved(home: Node) -> None:
    """Its state is in the store."""
    token = await home.registry.lease("ns", PodUid("u1"), 60, 1)
    await home.registry.record(manifest(ONE), OBJECT, token, 1)


async def handed_over(home: Node, there: Node) -> None:
    """The pod has stopped, and its successor on the other node continues."""
    await home.registry.stop("ns", PodUid("u1"), "ended", 1)
    await there.registry.claim("ns", PodUid("u1"), ONE, PodUid("u2"), 1)
    there.custody.outlive(ONE, ())
    await there.tell()


def left(*tiers: Tier) -> SuccessorHold:
    return SuccessorHold(ONE, "ns", "u1", {tier.value: 7 for tier in tiers}, 900.0)


async def test_it_is_told_once_the_store_has_it_and_once(nodes: tuple[Node, Node]) -> None:
    home, _ = nodes
    await home.keep(ONE, NVME)
    assert home.kept() == [], "its copy on NVMe no other node drops"
    await home.keep(ONE, NVME, OBJECT)
    await home.keep(ONE, OBJECT)
    assert home.kept() == [(Kind.SEALED, ONE, "object")]


async def test_a_registry_that_was_lost_is_told_again_of_what_may_be_claimed(
    nodes: tuple[Node, Node],
) -> None:
    """After a restart of the agent: of each pod that is here the newest."""
    home, _ = nodes
    await home.keep(ONE, OBJECT)
    await home.keep(TWO, OBJECT)
    home.reports.clear()
    home.begin()
    home.custody.begin()
    assert home.kept() == [], "its pod is gone, and fenced"
    home.seat("u1")
    home.begin()
    home.custody.begin()
    assert home.kept() == [(Kind.SEALED, TWO, "object")]


async def test_what_people_keep_is_known_still_and_its_node_may_drop_it(
    nodes: tuple[Node, Node],
) -> None:
    home, there = nodes
    await saved(home)
    await home.keep(ONE, OBJECT)
    await home.tell()
    await handed_over(home, there)
    assert await home.registry.newest("ns", PodUid("u1"), 1) == ONE
    line = await home.registry.line("ns", PodUid("u1"), 1)
    assert (line.successor, line.artifact) == ("u2", "")
    assert await home.inquiry.ask(left(OBJECT)) == Answer(WHY)
    home.custody.forget(f"save-{ONE}", "its person wants it no more")
    await home.tell()
    with pytest.raises(NotFoundError):
        await home.registry.newest("ns", PodUid("u1"), 1)


async def test_what_nobody_keeps_is_forgotten_and_its_node_hears_of_it(
    nodes: tuple[Node, Node],
) -> None:
    home, there = nodes
    await saved(home)
    await handed_over(home, there)
    with pytest.raises(NotFoundError):
        await home.registry.newest("ns", PodUid("u1"), 1)
    assert (await home.registry.line("ns", PodUid("u1"), 1)).artifact == ONE
    assert await home.inquiry.ask(left(OBJECT)) == Answer(WHY)


async def test_while_it_is_needed_it_is_not_let_go_of(nodes: tuple[Node, Node]) -> None:
    home, there = nodes
    await saved(home)
    await home.registry.stop("ns", PodUid("u1"), "ended", 1)
    await there.registry.claim("ns", PodUid("u1"), ONE, PodUid("u2"), 1)
    assert (await home.inquiry.ask(left(OBJECT))).over == ""


async def test_what_people_keep_on_nvme_stays_there(nodes: tuple[Node, Node]) -> None:
    """A successor on another node that needs it no more ends its own hold, and not theirs."""
    home, there = nodes
    await saved(home)
    await home.keep(ONE, NVME)
    home.custody.orphan(left(NVME, OBJECT))
    await handed_over(home, there)
    await home.custody._ask(left(NVME, OBJECT))
    assert home.dropped == []
    home.custody._become(replace(home.custody.of(ONE), person=None))
    await home.custody._ask(left(NVME, OBJECT))
    assert home.dropped == [(ONE, NVME)]


async def test_what_the_successors_people_keep_of_it_is_not_reported_as_dropped(
    nodes: tuple[Node, Node],
) -> None:
    """They saved it before it continued; and that it is kept its own pod's node alone may say."""
    _, there = nodes
    there.seat("u2", artifact=ONE, claimed=ONE, borrowed=True, begins=Begins.ADOPTED)
    await there.keep(ONE, OBJECT, uid="u2")
    there.custody.outlive(ONE, ())
    assert there.reports == []
    there.custody.forget(f"save-{ONE}", "its person wants it no more")
    there.seats.clear()
    there.custody.outlive(ONE, ())
    assert [(one.kind, one.tier) for one in there.reports] == [(Kind.DROPPED, "object")]
