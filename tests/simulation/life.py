"""The lives of one node's agents: each is killed, and the next finds what it left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.core.artifacts.into import Into
from kybernate.core.seat.operations import Kind
from kybernate.core.swap.turns import TurnPolicy
from kybernate.ports import DumpState
from kybernate.settings.agent import AgentSettings
from kybernate.types import SeatState, Tier
from nodeagent.app.loop import Loop
from nodeagent.app.makemoves import agent_of
from nodeagent.app.recover import recover
from nodeagent.artifacts.reporting import ReportingVault
from nodeagent.artifacts.reports import ReportQueue
from nodeagent.migration.source import Source
from nodeagent.migration.target import Target
from nodeagent.migration.within import Within
from nodeagent.operations.operations import Operations
from nodeagent.seat.leases import Leases
from nodeagent.seat.node import Node, World
from nodeagent.seat.offloading import Offloading
from tests.kit import machine as fakes
from tests.kit.machine.journal import lose_tail, spoil
from tests.kit.warden import FakeCulprits
from tests.simulation.actors import StormProxy, StormyMachine
from tests.simulation.clock import Spinning, TimerLoop
from tests.simulation.cluster import Cluster
from tests.simulation.peers import StormInbox, StormPeers
from tests.simulation.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kybernate.types import PodUid
    from nodeagent.seat.record import Seat
    from tests.simulation.plan import Plan

SETTINGS = AgentSettings.model_validate(
    {
        "node": "n1",
        "min_residency_s": 0.4,
        "idle_after_s": 0.1,
        "drain_limit_s": 2.0,
        "start_limit_s": 5.0,
        "step_deadline_s": 3.0,
        "freeze_deadline_s": 1.0,
        "confirm_deadline_s": 1.0,
        "lease_break_s": 1.0,
        "max_wait_s": 8.0,
        "tier_residency_s": 0.3,
        "dump_retry_s": 1.0,
        "dump_deadline_s": 3.0,
        "transfer_deadline_s": 3.0,
        "restore_wait_s": 6.0,
        "keep_left_s": 3.0,
    }
)
_STEPS = (
    *(SETTINGS.start_limit_s, SETTINGS.step_deadline_s, SETTINGS.freeze_deadline_s),
    *(SETTINGS.confirm_deadline_s, SETTINGS.dump_deadline_s, SETTINGS.transfer_deadline_s),
    SETTINGS.restore_wait_s,
)
PAID_OFF = sum(_STEPS) * TurnPolicy(SETTINGS.turn_swap_percent / 100).price
"""Seconds for which a seat may hold its GPUs by right, since the swap before took as long as the
deadlines of its steps let it."""
_MAY_PARK = (SeatState.STARTING, SeatState.ACTIVE, SeatState.DRAINING)
_ENOUGH = 1 << 60
BEGIN = 1000.0
"""Virtual seconds at which a storm begins."""


class Killed(KeyboardInterrupt):
    """The agent is killed here. Of this kind, because an event loop lets it through at once."""


class Life:
    """A node of a storm, whose agents live one after the other, each on an event loop of its own.

    `found` are the violations, `kills` counts agents, `says` takes the lines of a trace; `moving`
    are pods whose moves to the `other` node are asked for.
    """

    def __init__(
        self,
        plan: Plan,
        says: Callable[[str], None] | None,
        elsewhere: fakes.Elsewhere | None = None,
    ) -> None:
        self.plan = plan
        self.elsewhere = elsewhere
        self.machine = StormyMachine(plan, elsewhere)
        self.machine.crash_with = Killed
        self.machine.slots = self._slots
        self.proxies = [
            StormProxy("p1", self.machine, gives_back=False),
            StormProxy("p2", self.machine, gives_back=True),
        ]
        self.cluster = Cluster(plan, self.machine, self.proxies)
        self.node: Node | None = None
        self.found: list[str] = []
        self.kills = 0
        self.refused: dict[PodUid, str] = {}
        self.moving: set[PodUid] = set()
        self.watch = Watch(self)
        self.joined: Callable[[], None] = lambda: None
        self.over = False
        self.other: Life | None = None
        self.inbox = StormInbox(self)
        self.receiver: Target | None = None
        self.operations: Operations | None = None
        self._says = says
        self.loop = TimerLoop(BEGIN)
        if says:
            self.machine.said = self.note

    # --- time -------------------------------------------------------------------------------------

    def begin(self, first: Callable[[], None]) -> None:
        """The first agent starts, after `first`."""
        self.loop.begin(self._live(first))

    def due(self) -> float:
        """When something happens next."""
        return self.loop.due()

    def turn(self) -> None:
        """Let happen what is next."""
        try:
            self.loop.turn()
        except Killed:
            self._die()
        except Spinning as error:
            self.found.append(str(error))
            self.over = True

    def at(self, when: float, what: Callable[[], None]) -> None:
        """From another node: have it happen here then, or as soon as there is an agent again."""
        self.machine.at(self.loop, when, what)

    def end(self) -> None:
        """Nothing happens here any more."""
        self.found += self.loop.problems
        self.loop.close()

    def note(self, what: str) -> None:
        """For a trace."""
        if self._says:
            node = f"{self.plan.node} " if self.elsewhere else ""
            self._says(f"{self.loop.time() - BEGIN:8.3f} {node}{what}")

    # --- life and death ---------------------------------------------------------------------------

    async def _live(self, first: Callable[[], None] | None) -> None:
        self.machine.carry_on()
        if first is None:
            self._kill_criu()
        else:
            first()
        agent = self._agent()
        records = await recover(agent)
        agent.life.aside(agent.reports.run())
        if self.other is not None:
            self._wire_moves(agent, self.other, records)
        self.cluster.joined(agent)
        self.joined()

    def _wire_moves(
        self, agent: Loop, other: Life, records: Mapping[str, Mapping[str, object]]
    ) -> None:
        """As the agent is wired to those of other nodes."""
        self.operations = operations = Operations(
            agent.operators, agent.offload, agent.life, agent.policy
        )
        agent.node.observe(operations)
        self.receiver = Target(agent_of(agent), self.inbox, agent.adoptions)  # type: ignore[arg-type]
        self.receiver.resume(records)
        peers = Within(self.plan.node, self.receiver, StormPeers(self, other))
        source = Source(agent_of(agent), peers, operations.advanced)
        operations.carry(Kind.MOVE, source)
        agent.node.observe(self.receiver, source)
        source.resume(records)
        operations.resume(records)
        agent.life.aside(self.receiver.coming.clear())

    def _die(self) -> None:
        self.note("the agent is killed")
        self.receiver = self.operations = None
        self.kills += 1
        self.cluster.left()
        self.machine.listener = None
        self.machine.crash_at = None
        if self.plan.lose_journal and self.kills == 1:
            self.machine.excused = True
            self.machine.journal.clear()
        elif self.plan.spoil_journal:
            self.note("a line of its journal is spoilt")
            spoil(self.machine, self.plan.rng.randint(0, 12))
        elif self.plan.lose_tail:
            lose_tail(self.machine, self.plan.rng.randint(0, 4))
        self.machine.unsynced.clear()
        now = self.loop.time()
        self.end()
        self.loop = TimerLoop(now + self.plan.rng.choice((0.01, 0.3, 1.0)))
        self.loop.begin(self._live(None))

    def _kill_criu(self) -> None:
        """It dies with the agent, and in the middle of a dump it may leave the tree running."""
        machine = self.machine
        machine.gates.update(dict.fromkeys(machine.gates))
        for folder, snapshot in tuple(machine.folders.items()):
            if not snapshot.whole and folder == f"/dumps/{snapshot.uid}":
                init = machine.inits[snapshot.uid]
                if machine.dumps.get(init) is DumpState.HOLDING and self.plan.rng.random() < 0.5:
                    machine.thaw(snapshot.handle)

    # --- the agent --------------------------------------------------------------------------------

    def _agent(self) -> Loop:
        world = World(
            gpus=fakes.FakeGpus(self.machine),
            helpers=fakes.FakeHelpers(self.machine),
            freezer=fakes.FakeFreezer(self.machine),
            procs=fakes.FakeProcs(self.machine),
            doors=fakes.FakeDoors(self.machine),
            specs=fakes.FakeSpecs(self.machine),
            pod_resources=fakes.FakePodResources(self.machine),
            images=fakes.FakeImages(self.machine),
            journal=fakes.FakeJournal(self.machine),
            blocking=fakes.inline,
            asking=fakes.inline,
            now=self.loop.time,
            wall=self.loop.time,
            offloading=self._offloading() if self.plan.tiers else None,
        )
        world, reports = self._with_registry(world)
        settings = SETTINGS.model_copy(update={"node": self.plan.node})
        self.node = Node(settings, world, Leases(settings.lease_break_s))
        self.node.park_budget = self.plan.ram or _ENOUGH
        self.node.observe(self.watch)
        agent = Loop(self.node, reports)
        agent.refusals = self._refusals
        self._tiers = agent.tiers
        return agent

    def _with_registry(self, world: World) -> tuple[World, ReportQueue | None]:
        """As the agent is wired to one, where there is one."""
        if self.elsewhere is None or world.offloading is None:
            return world, None
        registry = fakes.FakeRegistry(self.machine, self.elsewhere)
        reports = ReportQueue(world.journal, registry, world.offloading.vault.manifest)
        offloading = replace(
            world.offloading, vault=ReportingVault(world.offloading.vault, reports)
        )
        return replace(world, offloading=offloading, registry=registry), reports

    def _offloading(self) -> Offloading:
        store = {Tier.OBJECT: _ENOUGH} if self.plan.object_store else {}
        return Offloading(
            dumper=fakes.FakeDumper(self.machine),
            vault=fakes.FakeVault(self.machine),
            gatekeeper=fakes.FakeGatekeeper(self.machine),
            culprits=FakeCulprits(self.machine),
            facts=_facts,
            limits={Tier.NVME: _ENOUGH, **store},
            into=_into,
            first=lambda images: self.machine.folders[str(images)].first,
        )

    def _refusals(self, seats: Iterable[Seat]) -> Mapping[PodUid, str]:
        """By a test, or for want of room in RAM."""
        if self.node is None or not self.plan.tiers:
            return self.refused
        node, free = self.node, self.node.park_budget - self.watch.in_ram()
        node.park_room = max(0, free)
        short = [s for s in seats if s.state in _MAY_PARK and node.park_size(s) > free]
        stuck = [s.uid for s in short if not self._tiers.makes_room(s, node.park_size(s))]
        return {**dict.fromkeys(stuck, "RAM is full"), **self.refused}

    def _slots(self, uid: PodUid) -> int:
        return self.cluster.pods[uid].plan.group.active_slots


async def _facts(seat: Seat) -> Mapping[str, object]:
    return {
        "namespace": seat.identity.pod.namespace,
        "pod": seat.identity.pod.name,
        "gpu_pids": list(seat.tree.inner),
        "gpus": [*seat.tree.gpu_map] or list(seat.identity.gpus),
        "held": [seat.tree.held.get(gpu, 0) for gpu in seat.identity.gpus],
    }


async def _into(seat: Seat) -> Into:
    return Into(seat.identity.pod.namespace, seat.uid, fakes.CONTAINER)
