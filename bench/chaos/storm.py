"""One schedule: agents live and die, until the weather clears and all must work."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bench.chaos.actors import StormProxy, StormyMachine
from bench.chaos.clock import Spinning, TimerLoop
from bench.chaos.cluster import Cluster
from bench.chaos.plan import WEATHER_CLEARS, another_pod, draw_plan
from kybernate.core.seats import OCCUPYING, WITHOUT_TREE
from kybernate.core.swap import violations
from kybernate.ports import DumpState, ProcessState
from kybernate.settings.agent import AgentSettings
from kybernate.testing import machine as fakes
from kybernate.testing.machine.journal import lose_tail
from kybernate.testing.warden import FakeCulprits
from kybernate.types import PodUid, SeatState, Tier
from nodeagent.below import Below
from nodeagent.leases import Leases
from nodeagent.loop import Loop
from nodeagent.node import IN_RAM, Node, World
from nodeagent.recover import recover
from nodeagent.transfers import DROP

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from bench.chaos.cluster import Pod
    from bench.chaos.plan import Event, Plan
    from nodeagent.seat import Seat

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
    }
)
_MAY_PARK = (SeatState.STARTING, SeatState.ACTIVE, SeatState.DRAINING)
_ENOUGH = 1 << 60
_TICK = 0.4
_PATIENCE = 150.0
_BEGIN = 1000.0


class Killed(KeyboardInterrupt):
    """The agent is killed here. Of this kind, because an event loop lets it through at once."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule came to. `kills` of the agent; `steps` are changes of seats' states."""

    seed: int
    kills: int
    steps: int
    events: int
    violations: tuple[str, ...]


def run(seed: int, kind: str = "storm", say: Callable[[str], None] | None = None) -> Outcome:
    """Play the schedule of this seed."""
    return Storm(draw_plan(seed, kind), say).run()


class Storm:
    """A plan as it is played. Observes the agent: implements `nodeagent.node.Observer`."""

    def __init__(self, plan: Plan, say: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.machine = StormyMachine(plan.inventory.memory(), plan.rng, plan.faults)
        self.machine.crash_with = Killed
        self.machine.slots = self._slots
        self.proxies = [StormProxy(name, self.machine) for name in ("p1", "p2")]
        self.cluster = Cluster(plan, self.machine, self.proxies)
        self.node: Node | None = None
        self.found: list[str] = []
        self.kills = self.steps = self.played = 0
        self._states: dict[PodUid, SeatState] = {}
        self._calm_since: float | None = None
        self._before: dict[PodUid, int] = {}
        self._refused: dict[PodUid, str] = {}
        self._over: asyncio.Future[None] | None = None
        self._say = say
        self._loop = TimerLoop(_BEGIN)
        if say:
            self.machine.said = self.note

    # --- the schedule ---------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Live and die until it is over."""
        catcher = _Catcher(self)
        logger = logging.getLogger("nodeagent")
        logger.addHandler(catcher)
        try:
            while not self._live_once():
                pass
        finally:
            logger.removeHandler(catcher)
        found = tuple(dict.fromkeys([*self.found, *self.machine.breaches]))
        return Outcome(self.plan.seed, self.kills, self.steps, self.played, found)

    def _live_once(self) -> bool:
        """One life of an agent; whether the schedule is over."""
        over = True
        try:
            self._loop.run_until_complete(self._live())
        except Killed:
            over = False
            self._die()
        except Spinning as error:
            self.found.append(str(error))
        self.found += self._loop.problems
        now = self._loop.time()
        self._loop.close()
        if not over:
            self._loop = TimerLoop(now + self.plan.rng.choice((0.01, 0.3, 1.0)))
        return over

    def _die(self) -> None:
        self.note("the agent is killed")
        self.kills += 1
        self.cluster.left()
        self.machine.listener = None
        self.machine.crash_at = None
        if self.plan.lose_journal and self.kills == 1:
            self.machine.excused = True
            self.machine.journal.clear()
        elif self.plan.lose_tail:
            lose_tail(self.machine, self.plan.rng.randint(0, 4))
        self.machine.unsynced.clear()

    def _kill_criu(self) -> None:
        """It dies with the agent, and in the middle of a dump it may leave the tree running."""
        machine = self.machine
        machine.gates.update(dict.fromkeys(machine.gates))
        for folder, snapshot in tuple(machine.folders.items()):
            if not snapshot.whole and folder == f"/dumps/{snapshot.uid}":
                init = machine.inits[snapshot.uid]
                if machine.dumps.get(init) is DumpState.HOLDING and self.plan.rng.random() < 0.5:
                    machine.thaw(snapshot.handle)

    async def _live(self) -> None:
        self._over = self._loop.create_future()
        self.machine.carry_on()
        if not self.kills:
            self._begin()
        else:
            self._kill_criu()
        agent = self._agent()
        await recover(agent)
        self.cluster.joined(agent)
        if self._calm_since is not None:
            self._clear_up()
        await self._over

    def _begin(self) -> None:
        for pod in self.plan.pods:
            self.cluster.create(pod)
        for event in self.plan.events:
            self.machine.later(event.at, partial(self._play, event))
        self.machine.later(WEATHER_CLEARS, self._calm_down)
        self.machine.later(0.0, self._tick)

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
            now=self._loop.time,
            wall=self._loop.time,
            below=self._below() if self.plan.tiers else None,
        )
        self.node = Node(SETTINGS, world, Leases(SETTINGS.lease_break_s))
        self.node.park_budget = self.plan.ram or _ENOUGH
        self.node.observers.append(self)
        self.node.refusals = self._refusals
        return Loop(self.node)

    def _below(self) -> Below:
        async def facts(seat: Seat) -> Mapping[str, object]:
            return {"namespace": seat.identity.pod.namespace, "pod": seat.identity.pod.name}

        store = {Tier.OBJECT: _ENOUGH} if self.plan.object_store else {}
        return Below(
            dumper=fakes.FakeDumper(self.machine),
            vault=fakes.FakeVault(self.machine),
            gatekeeper=fakes.FakeGatekeeper(self.machine),
            culprits=FakeCulprits(self.machine),
            facts=facts,
            limits={Tier.NVME: _ENOUGH, **store},
        )

    def _refusals(self, seats: Iterable[Seat]) -> Mapping[PodUid, str]:
        """By a test, or for want of room in RAM."""
        if self.node is None or not self.plan.tiers:
            return self._refused
        node, free = self.node, self.node.park_budget - self._in_ram()
        node.short = {
            seat.uid: node.park_size(seat)
            for seat in seats
            if seat.state in _MAY_PARK and node.park_size(seat) > free
        }
        return {**dict.fromkeys(node.short, "RAM is full"), **self._refused}

    def _in_ram(self) -> int:
        kept = (SeatState.PARKING, *IN_RAM)
        seats = self.node.seats.values() if self.node else ()
        return sum(self.node.park_size(s) for s in seats if self.node and s.state in kept)

    def _slots(self, uid: PodUid) -> int:
        return self.cluster.pods[uid].plan.group.active_slots

    def note(self, what: str) -> None:
        """For a trace."""
        if self._say:
            self._say(f"{self._loop.time() - _BEGIN:8.3f} {what}")

    # --- misfortunes ----------------------------------------------------------------------------

    def _play(self, event: Event) -> None:
        self.played += 1
        self.note(f"EVENT {event.kind} {event.draw:.2f}")
        pods = [pod for pod in self.cluster.pods.values() if not pod.gone]
        pod = pods[int(event.draw * len(pods))] if pods else None
        getattr(self, "_" + event.kind.replace("-", "_"))(event.draw, pod)

    def _burst(self, draw: float, pod: Pod | None) -> None:
        proxy = self.proxies[int(draw * 1000) % 2]
        for other in (p for p in self.cluster.pods.values() if not p.gone):
            if other is pod or self.plan.rng.random() < 0.3:
                proxy.request(other.uid, 0.02 + draw / 5, self._loop.time())

    def _long_request(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self.proxies[0].request(pod.uid, 5 * draw, self._loop.time())

    def _cancel(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self.proxies[int(draw * 1000) % 2].cancel(pod.uid)

    def _call(self, draw: float, pod: Pod | None) -> None:
        if pod and self.cluster.agent:
            self.cluster.agent.call_for(pod.uid, "a test")

    def _send_away(self, draw: float, pod: Pod | None) -> None:
        if pod and self.cluster.agent:
            self.cluster.agent.send_away(pod.uid, "a test")

    def _stay_away(self, draw: float, pod: Pod | None) -> None:
        if pod and self.cluster.agent:
            self.cluster.agent.send_away(pod.uid, "a test", stays_away=True)

    def _let_stay(self, draw: float, pod: Pod | None) -> None:
        if pod and self.cluster.agent:
            self.cluster.agent.let_stay(pod.uid)

    def _drain_node(self, draw: float, pod: Pod | None) -> None:
        if self.cluster.agent:
            self.cluster.agent.drain_node("a test")

    def _undrain_node(self, draw: float, pod: Pod | None) -> None:
        if self.cluster.agent:
            self.cluster.agent.undrain_node()

    def _to_nvme(self, draw: float, pod: Pod | None) -> None:
        self._ask_for_tier(pod, Tier.NVME)

    def _to_object(self, draw: float, pod: Pod | None) -> None:
        self._ask_for_tier(pod, Tier.OBJECT)

    def _to_ram(self, draw: float, pod: Pod | None) -> None:
        self._ask_for_tier(pod, Tier.RAM)

    def _any_tier(self, draw: float, pod: Pod | None) -> None:
        self._ask_for_tier(pod, None)

    def _ask_for_tier(self, pod: Pod | None, tier: Tier | None) -> None:
        """Of a seat that may be in GPU memory as well: it is sent away, too."""
        agent = self.cluster.agent
        if pod and agent:
            agent.ask_for_tier(pod.uid, tier)
            agent.send_away(pod.uid, "a test")

    def _arrive(self, draw: float, pod: Pod | None) -> None:
        """A packet that is sent again until somebody hears of it, or TCP passes."""
        gates = self.machine.gates
        shut = [uid for uid in gates if not self.cluster.pods[uid].gone]
        if not shut:
            return
        uid = shut[int(draw * len(shut)) % len(shut)]

        def again() -> None:
            if uid in gates and not self.machine.arrive(uid):
                self.machine.later(0.2, again)

        again()

    def _no_room(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self._refused[pod.uid] = "no memory"
            self._kick()

    def _room(self, draw: float, pod: Pod | None) -> None:
        self._refused.clear()
        self._kick()

    def _create(self, draw: float, pod: Pod | None) -> None:
        self.cluster.create(another_pod(self.plan, len(self.cluster.pods)))

    def _delete(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self.cluster.delete(pod, self._loop.time(), force=False)

    def _force_delete(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self.cluster.delete(pod, self._loop.time(), force=True)

    def _container_dies(self, draw: float, pod: Pod | None) -> None:
        if pod and pod.begun:
            self.machine.end_container(pod.uid)

    def _stray_term(self, draw: float, pod: Pod | None) -> None:
        if pod and pod.begun and not pod.deleting:
            self.cluster.term(pod, self._loop.time())

    def _worker_dies(self, draw: float, pod: Pod | None) -> None:
        live = [
            p
            for p in self.machine.procs.values()
            if pod and p.uid == pod.uid and p.alive and p.memory
        ]
        if live and live[-1].handle not in self.machine.frozen:
            self.machine.die(live[-1])

    def _lose_gpu(self, draw: float, pod: Pod | None) -> None:
        gpus = self.plan.inventory.gpus
        self.cluster.lose(gpus[int(draw * len(gpus))].uuid)

    def _find_gpu(self, draw: float, pod: Pod | None) -> None:
        self.machine.lost.clear()
        self.cluster.report()

    def _proxy_breaks(self, draw: float, pod: Pod | None) -> None:
        proxy, agent = self.proxies[int(draw * 1000) % 2], self.cluster.agent
        if proxy.loop is None:
            return
        proxy.disconnect()

        def back() -> None:
            if self.cluster.agent is agent and agent is not None and proxy.loop is None:
                proxy.connect(agent)

        self.machine.later(2.5 * draw, back)

    def _regroup(self, draw: float, pod: Pod | None) -> None:
        self.cluster.report(regroup=True)

    def _kill_agent(self, draw: float, pod: Pod | None) -> None:
        if self.cluster.agent:
            raise Killed

    def _kill_at_write(self, draw: float, pod: Pod | None) -> None:
        self.machine.crash_at = self.machine.journal_writes + 1 + int(draw * 12)
        self.machine.crash_after = int(draw * 1000) % 2 == 0

    def _kick(self) -> None:
        if self.cluster.agent:
            self.cluster.agent.kick()

    # --- the end --------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        self.note("THE WEATHER CLEARS")
        self._calm_since = self._loop.time()
        self.machine.rates.clear()
        self.machine.crash_at = None
        self.machine.lost.clear()
        self._refused.clear()
        self._before = {
            uid: sum(proxy.answered.get(uid, 0) for proxy in self.proxies)
            for uid in self.cluster.pods
        }
        self._clear_up()

    def _clear_up(self) -> None:
        agent = self.cluster.agent
        if agent is None:
            return
        self.cluster.report()
        agent.undrain_node()
        for uid in tuple(agent.node.seats):
            agent.let_stay(uid)
            agent.ask_for_tier(uid, None)

    def _tick(self) -> None:
        self.machine.later(_TICK, self._tick)
        now = self._loop.time()
        self.cluster.tick(now)
        if self._calm_since is not None and self.cluster.agent is not None:
            self._see_all_served(now - self._calm_since)

    def _see_all_served(self, waited: float) -> None:
        unserved = [pod for pod in self.cluster.pods.values() if not self._settled(pod)]
        for pod in unserved:
            proxy = self.proxies[0]
            idle = not proxy.waiting.get(pod.uid) and not proxy.in_flight.get(pod.uid)
            if idle and not pod.deleting and proxy.loop is not None:
                proxy.request(pod.uid, 0.05, self._loop.time())
        done = not unserved and self._quiet()
        if not done and waited < _PATIENCE:
            return
        for pod in unserved:
            self.found.append(f"{pod.plan.name} is not served: {self._describe(pod.uid)}")
        if not unserved:
            self._look_around()
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _settled(self, pod: Pod) -> bool:
        seats = self.node.seats if self.node else {}
        if pod.gone or pod.deleting:
            return pod.gone and pod.uid not in seats
        answered = sum(proxy.answered.get(pod.uid, 0) for proxy in self.proxies)
        return answered > self._before.get(pod.uid, 0)

    def _quiet(self) -> bool:
        resting = (SeatState.ACTIVE, SeatState.PARKED, *WITHOUT_TREE)
        seats = self.node.seats.values() if self.node else ()
        idle = all(s.state in resting and _done(s.work) and _done(s.watch) for s in seats)
        dropping = any(key.startswith(DROP) for key in self.machine.journal)
        idle = idle and not dropping and not self._gates_askew()
        return idle and not any(any(proxy.in_flight.values()) for proxy in self.proxies)

    def _describe(self, uid: PodUid) -> str:
        seat = self.node.seats.get(uid) if self.node else None
        if seat is None:
            return "the agent has no such seat"
        return f"{seat.state} ({seat.reason}), ending={seat.ending}, connected={seat.connected}"

    def _look_around(self) -> None:
        """All is quiet: nothing may be left of the storm."""
        seats = self.node.seats.values() if self.node else ()
        parked = {seat.handle for seat in seats if seat.state is SeatState.PARKED}
        for handle in self.machine.frozen ^ parked:
            self.found.append(f"{handle} is {'not ' if handle in parked else ''}frozen")
        for process in self.machine.procs.values():
            if not process.alive or process.cuda is ProcessState.NO_CUDA:
                continue
            wanted = ProcessState.CHECKPOINTED if process.handle in parked else ProcessState.RUNNING
            if process.cuda is not wanted:
                self.found.append(f"{process.uid} is {process.cuda}, should be {wanted}")
        self._look_below()

    def _gates_askew(self) -> set[PodUid]:
        """Seats whose TCP is held back though their tree is there, or the other way round."""
        seats = self.node.seats.values() if self.node else ()
        shut = self.machine.gates
        return {s.uid for s in seats if (s.uid in shut) is not (s.state in WITHOUT_TREE)}

    def _look_below(self) -> None:
        """Where no tree is, TCP is held back, and a saved state is kept; nowhere else."""
        seats = {seat.uid: seat for seat in self.node.seats.values()} if self.node else {}
        below = {uid for uid, seat in seats.items() if seat.state in WITHOUT_TREE}
        for uid in self._gates_askew():
            shut = uid in self.machine.gates
            self.found.append(f"{uid}: TCP is {'' if shut else 'not '}held back")
        for artifact in {seats[uid].artifact for uid in below} - self.machine.vault.keys():
            self.found.append(f"{artifact} is gone")
        kept = {seat.artifact for seat in seats.values()}
        if not self.plan.lose_tail and not self.plan.lose_journal:
            for artifact in self.machine.vault.keys() - kept:
                self.found.append(f"{artifact} is kept for nobody")
            for folder in self.machine.folders.keys() & {f"/dumps/{uid}" for uid in seats}:
                uid = PodUid(folder.removeprefix("/dumps/"))
                if seats[uid].images != folder:
                    self.found.append(f"{folder} is left over")

    # --- watching the agent ---------------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """Check the invariant whenever a state changes."""
        before = self._states.get(seat.uid)
        self._states[seat.uid] = seat.state
        if before is seat.state or self.node is None:
            return
        self.steps += 1
        self.note(f"{seat.identity.name}: {before} -> {seat.state} ({seat.reason})")
        if seat.state in OCCUPYING and before not in OCCUPYING:
            self.found += violations(self.node.swap_view())
        if seat.state in (SeatState.PARKING, SeatState.RESTORING):
            self._see_room()
        if seat.state is SeatState.PARKING:
            self._see_drained(seat.uid)

    def _see_room(self) -> None:
        if self.plan.tiers and not self.plan.lose_journal and self.node is not None:
            taken, budget = self._in_ram(), self.node.park_budget
            if taken > budget:
                self.found.append(f"parked seats take {taken} of {budget} bytes of RAM")

    def _see_drained(self, uid: PodUid) -> None:
        for proxy in self.proxies:
            if proxy.loop is not None and proxy.in_flight.get(uid) and uid in proxy.leases:
                self.found.append(f"{uid} is parked under requests of {proxy.name}")

    def seat_gone(self, seat: Seat) -> None:
        """Forgotten."""
        self._states.pop(seat.uid, None)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """In calm weather, and where nothing but the agent is killed, nothing may be lost."""
        self.note(f"{seat.identity.name}: {reason}: {sentence}")
        if self.plan.kind == "kills" and reason == "SeatFailed":
            self.found.append(f"{seat.identity.name} was lost: {sentence}")


def _done(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()


class _Catcher(logging.Handler):
    """Errors that the agent only logs are findings too."""

    def __init__(self, storm: Storm) -> None:
        super().__init__(logging.ERROR)
        self._storm = storm

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._storm.found.append(f"logged: {record.getMessage()}: {error!r}")
