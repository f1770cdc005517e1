"""Nodes and gangs for tests, and a cluster of them that can crash between any two steps."""

from __future__ import annotations

from dataclasses import replace

from kybernate import keys
from kybernate.core.gangs.gang import Act, Member, PlannedSeat, judge
from kybernate.core.gangs.gangplan import plan
from kybernate.core.ledger.ledger import Claim, Ledger, NodeSeats, NodeView
from kybernate.core.placement import Demand, Table
from kybernate.errors import ConflictError, NotFoundError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, PodRef, PodUid

GIB = 1 << 30
ONE, TWO = keys.seat_resource(1), keys.seat_resource(2)
POLICY = Table("best-fit").of
HOLD_S = 30.0


def gpu_node(name: str = "n1", gpus: int = 2, seats: int = 2, slots: int = 1) -> NodeSeats:
    """GPUs with a group each (G0, G1, …), and pairs of them (P0, P2, …)."""
    found = tuple(Gpu(GpuUuid(f"{name}-{i}"), i, "H100", 80 * GIB) for i in range(gpus))
    singles = [Group(GroupName(f"G{gpu.index}"), ONE, (gpu.uuid,), seats, slots) for gpu in found]
    pairs = [
        Group(GroupName(f"P{i}"), TWO, (found[i].uuid, found[i + 1].uuid), seats, slots)
        for i in range(0, gpus - 1, 2)
    ]
    return NodeSeats(NodeName(name), found, {}, (*singles, *pairs))


def member(name: str, gang: str = "g", size: object = 2, **changes: object) -> Member:
    """A gated pod that asks for one GPU."""
    pod = PodRef("d", name, PodUid(f"uid-{name}"))
    text = None if size is None else str(size)
    made = Member(pod, gang, text, Demand(ONE), gates=(keys.GANG_GATE,), created="2026-01-01")
    return replace(made, **changes)  # type: ignore[arg-type]


def gang(name: str, size: int, resource: str = ONE, vram: int | None = None) -> list[Member]:
    demand = Demand(resource, vram)
    return [member(f"{name}-{i}", name, size, demand=demand) for i in range(size)]


def views(*nodes: NodeSeats) -> dict[NodeName, NodeView]:
    return {node.name: NodeView(node) for node in nodes}


class World:
    """Pods, the ledger, and what the extender does to both; only the pods outlive a crash."""

    def __init__(self, nodes: list[NodeSeats], members: list[Member]) -> None:
        self.now = 0.0
        self.nodes = nodes
        self.pods = {one.pod.uid: one for one in members}
        self.ledger = Ledger()
        self.crash()

    def crash(self) -> None:
        """Lose all but pods and nodes, and build it anew."""
        self.ledger = Ledger()
        for node in self.nodes:
            self.ledger.upsert_node(node)
        for one in self.pods.values():
            self._take_in(one)

    def change(self, uid: PodUid, **changes: object) -> None:
        self.pods[uid] = replace(self.pods[uid], **changes)  # type: ignore[arg-type]
        self._take_in(self.pods[uid])

    def delete(self, uid: PodUid) -> None:
        self.pods.pop(uid, None)
        self.ledger.remove_claim(uid)

    def gang(self, name: str) -> list[Member]:
        return [one for one in self.pods.values() if one.gang == name]

    def views(self) -> dict[NodeName, NodeView]:
        self.ledger.expire(self.now)
        found = {node.name: self.ledger.node(node.name) for node in self.nodes}
        return {name: view for name, view in found.items() if view is not None}

    def stands(self, one: Member) -> bool:
        held = self.ledger.claim(one.pod.uid)
        seat = one.seat
        return held is not None and seat is not None and held.node == seat.node

    def step(self, name: str, writes: int = 99) -> Act:
        """One step for a gang; it crashes after so many writes to pods."""
        step = judge(self.gang(name), self.now, self.stands)
        if step.act is Act.PLAN:
            self._plan(step.members, writes)
        elif step.act is Act.LIFT:
            for one in step.members[:writes]:
                self.change(one.pod.uid, gates=())
        elif step.act is Act.RELEASE:
            for one in step.members[:writes]:
                self.change(one.pod.uid, seat=None)
        if writes < 99:
            self.crash()
        return step.act

    def bind(self, uid: PodUid) -> None:
        """What the scheduler does to a pod without gates: only to its planned seat."""
        one = self.pods[uid]
        if one.gates or one.seat is None or one.seat.until <= self.now or one.node is not None:
            return
        self.change(uid, node=one.seat.node, group=one.seat.group)

    def _plan(self, members: tuple[Member, ...], writes: int) -> None:
        found = plan(self.gang(members[0].gang), self.views(), POLICY)
        for uid, (node, group) in list(found.seats.items())[:writes]:
            self.change(uid, seat=PlannedSeat(node, group, self.now + HOLD_S))

    def _take_in(self, one: Member) -> None:
        demand = one.demand or Demand(ONE)
        if one.node is not None:
            claim = Claim(one.pod, one.node, one.group, demand.resource, demand.vram)
            self.ledger.upsert_claim(claim)
        elif one.seat is not None and one.seat.until > self.now:
            seat = one.seat
            claim = Claim(one.pod, seat.node, seat.group, demand.resource, demand.vram)
            try:
                self.ledger.reserve(claim, self.now, seat.until - self.now)
            except (ConflictError, NotFoundError):
                self.ledger.release(one.pod.uid)
        else:
            self.ledger.release(one.pod.uid)
