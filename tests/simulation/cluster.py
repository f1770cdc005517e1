"""Kubelet, device plugin and API server of a storm, as far as the agent notices them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kybernate.errors import RefusedError
from kybernate.ports import DumpState
from kybernate.types import PodRef, PodUid, SeatName
from nodeagent.app.recoveroffload import clear_of_the_gone
from nodeagent.kube.pods import PodFacts
from nodeagent.seat.record import Seat, SeatIdentity
from tests.kit.machine import App

if TYPE_CHECKING:
    from kybernate.types import GpuUuid
    from nodeagent.app.loop import Loop
    from tests.simulation.actors import StormProxy, StormyMachine
    from tests.simulation.plan import Plan, PodPlan

GRACE = 2.0
_TERM_ANSWER = 0.1
_TERM_PATIENCE = 2.0
_LONG_AGO = float("inf")


@dataclass(slots=True)
class Pod:
    """A pod of the storm. Times are virtual seconds; `inf` is not yet."""

    plan: PodPlan
    uid: PodUid
    begun: bool = False
    deleting: bool = False
    gone: bool = False
    term_at: float = _LONG_AGO
    forward_at: float = _LONG_AGO
    kill_at: float = _LONG_AGO
    restart_at: float = _LONG_AGO

    def facts(self) -> PodFacts:
        """What the watch shows."""
        plan = self.plan
        return PodFacts(
            ref=PodRef("default", plan.name, self.uid),
            resource=plan.group.resource,
            container="main",
            group=plan.group.name,
            assigned_at=0.0,
            seat=None,
            model=plan.name,
            vram=plan.vram,
            image="img",
            port=8000,
            has_args=False,
            ip="10.0.0.1",
            deleting=self.deleting,
            over=False,
            priority=plan.priority,
            grace=GRACE,
            weight=plan.weight,
            idle=plan.idle,
            ready_within=plan.ready_within,
            restore=plan.restore,
        )

    def identity(self) -> SeatIdentity:
        """The seat that it is given."""
        plan = self.plan
        return SeatIdentity(
            pod=PodRef("default", plan.name, self.uid),
            container="main",
            resource=plan.group.resource,
            device_id=f"{plan.name}-token",
            name=SeatName(f"{plan.group.name}-seat-{plan.name}"),
            group=plan.group.name,
            gpus=plan.group.gpus,
            vram=plan.vram,
            model=plan.name,
            image="img",
            port=8000,
            grace=GRACE,
            anywhere=plan.anywhere,
        )


class Cluster:
    """Owns the pods. `agent` is the present one, or None; `synced` whether its watch is."""

    def __init__(self, plan: Plan, machine: StormyMachine, proxies: list[StormProxy]) -> None:
        self.plan = plan
        self.machine = machine
        self.proxies = proxies
        self.pods: dict[PodUid, Pod] = {}
        self.agent: Loop | None = None
        self.synced = False
        self.cleared = False

    # --- what happens -------------------------------------------------------------------------

    def create(self, plan: PodPlan) -> None:
        """A pod is bound to this node."""
        uid = PodUid(f"uid-{plan.name}")
        pod = self.pods[uid] = Pod(plan, uid)
        self.machine.apps[uid] = App(plan.group.gpus, plan.size, delay=plan.delay, ranks=plan.ranks)
        if plan.restore is not None:
            self._soon(0.1, lambda agent: agent.pod_changed(pod.facts()))

    def delete(self, pod: Pod, now: float, *, force: bool) -> None:
        """As `kubectl delete` does, or without waiting for anything."""
        if pod.deleting:
            return
        pod.deleting = True
        pod.term_at, pod.kill_at = now, now if force else now + GRACE
        self._soon(0.3, lambda agent: agent.pod_changed(pod.facts()))

    def report(self, *, regroup: bool = False) -> None:
        """The plugin tells what there is."""
        inventory = self.plan.inventory
        groups = inventory.groups[1:] if regroup else inventory.groups

        def tell(agent: Loop) -> None:
            lost = self.machine.lost
            gpus = tuple(replace(gpu, healthy=gpu.uuid not in lost) for gpu in inventory.gpus)
            try:
                agent.inventory_reported(replace(inventory, gpus=gpus, groups=groups))
            except RefusedError:
                if not regroup:
                    raise

        self._soon(0.5, tell)

    def joined(self, agent: Loop) -> None:
        """An agent is up: the others find it by and by."""
        self.agent, self.synced, self.cleared = agent, False, False
        self.report()
        self._soon(1.0, self._relist)
        for proxy in self.proxies:
            self._soon(1.5, proxy.connect)

    def left(self) -> None:
        """The agent is dead."""
        self.agent = None
        for proxy in self.proxies:
            proxy.agent_died()

    def lose(self, gpu: GpuUuid) -> None:
        """A GPU falls off the bus."""
        self.machine.lose(gpu)
        self.report()

    def tick(self, now: float) -> None:
        """The kubelet looks at its pods."""
        for pod in tuple(self.pods.values()):
            if not pod.gone:
                self._look_at(pod, now)
        self._clear()

    # --- inside -------------------------------------------------------------------------------

    def _soon(self, within: float, call: object) -> None:
        """Some time later, if the agent is still the same."""
        agent = self.agent

        def do() -> None:
            if agent is not None and self.agent is agent:
                call(agent)  # type: ignore[operator]

        self.machine.later(self.machine.rng.random() * within, do)

    def _relist(self, agent: Loop) -> None:
        for uid in tuple(agent.node.seats):
            pod = self.pods.get(uid)
            if pod is None or pod.gone:
                agent.pod_gone(uid)
            elif pod.deleting:
                agent.pod_changed(pod.facts())
        for pod in self.pods.values():
            if pod.plan.restore is not None and pod.uid not in agent.node.seats and not pod.gone:
                agent.pod_changed(pod.facts())
        self.synced = True

    def _clear(self) -> None:
        """Once an agent knows all pods."""
        agent = self.agent
        if agent is None or self.cleared or not self.synced:
            return
        begun = {pod.uid for pod in self.pods.values() if pod.begun and not pod.gone}
        if begun <= agent.node.seats.keys():
            self.cleared = True
            agent.life.aside(clear_of_the_gone(agent))

    def _look_at(self, pod: Pod, now: float) -> None:
        alive = [p for p in self.machine.procs.values() if p.uid == pod.uid and p.alive]
        self._see_to_seat(pod)
        init = self.machine.inits.get(pod.uid, 0)
        ran = init in self.machine.went and init not in self.machine.dumps
        if alive and ran and not any(p.main for p in alive):
            self.machine.end_container(pod.uid)
        if alive and now >= pod.forward_at:
            pod.forward_at = _LONG_AGO
            self._forward(pod)
        if pod.deleting:
            self._end(pod, now, running=bool(alive))
        elif pod.begun and not alive:
            self._restart(pod, now)

    def _see_to_seat(self, pod: Pod) -> None:
        agent = self.agent
        if agent is None or agent.node.inventory is None:
            return
        known = pod.begun
        if known and pod.uid in agent.node.seats:
            return
        if (known and not self.synced) or (pod.deleting and not known):
            return
        asyncio.get_running_loop().create_task(self._prepare(pod, agent))

    async def _prepare(self, pod: Pod, agent: Loop) -> None:
        world = agent.node.world
        if pod.uid not in agent.node.seats:
            seat = Seat(pod.identity(), world.now(), world.wall())
            seat.contact.pod_ip, seat.wishes.restore = "10.0.0.1", pod.plan.restore
            seat.wishes.weight, seat.wishes.idle = pod.plan.weight, pod.plan.idle
            seat.wishes.ready_within = pod.plan.ready_within
            seat.wishes.priority = pod.plan.priority
            agent.add(seat)
        await world.doors.open(pod.uid)
        if not pod.begun:
            pod.begun = True
            self.machine.start_container(pod.uid)

    def _restart(self, pod: Pod, now: float) -> None:
        for proxy in self.proxies:
            proxy.broken(pod.uid)
        if pod.restart_at == _LONG_AGO:
            pod.restart_at = now + self.machine.rng.random()
        elif now >= pod.restart_at:
            pod.restart_at = _LONG_AGO
            self.machine.restart_container(pod.uid)

    def _end(self, pod: Pod, now: float, *, running: bool) -> None:
        if not running:
            pod.gone = True
            for proxy in self.proxies:
                proxy.broken(pod.uid)
                proxy.cancel(pod.uid)
            self._soon(0.2, lambda agent: agent.pod_gone(pod.uid))
        elif now >= pod.kill_at:
            self.machine.end_container(pod.uid)
        elif now >= pod.term_at:
            pod.term_at = _LONG_AGO
            self.term(pod, now)

    def term(self, pod: Pod, now: float) -> None:
        """SIGTERM to kyb-init, which asks the agent first if it has a command below it."""
        if self.machine.dumps.get(self.machine.inits[pod.uid]) is DumpState.PARKED:
            self.machine.end_container(pod.uid)
            return
        answers = self.agent is not None and pod.uid in self.machine.open_doors
        pod.forward_at = now + (_TERM_ANSWER if answers else _TERM_PATIENCE)
        if answers and self.agent is not None:
            self.agent.doors.on_term(pod.uid, 15)

    def _forward(self, pod: Pod) -> None:
        went = self.machine.inits.get(pod.uid) in self.machine.went
        if went and pod.plan.ignores_term:
            return
        init = self.machine.inits.get(pod.uid)

        def exit_now() -> None:
            if self.machine.inits.get(pod.uid) == init and not pod.gone:
                self.machine.end_container(pod.uid)

        self.machine.later(self.machine.rng.random() if went else 0.0, exit_now)
