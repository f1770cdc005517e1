"""What a schedule has happen to a node, by the names of the plan's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.types import Tier
from tests.simulation.life import Killed
from tests.simulation.plan import another_pod

if TYPE_CHECKING:
    from tests.simulation.cluster import Pod
    from tests.simulation.life import Life
    from tests.simulation.plan import Event


class Misfortunes:
    """Plays events on a node. `played` counts them."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._cluster = life.cluster
        self._machine = life.machine
        self._proxies = life.proxies
        self.played = 0

    def play(self, event: Event) -> None:
        """Now."""
        self.played += 1
        self._life.note(f"EVENT {event.kind} {event.draw:.2f}")
        pods = [pod for pod in self._cluster.pods.values() if not pod.gone]
        pod = pods[int(event.draw * len(pods))] if pods else None
        getattr(self, "_" + event.kind.replace("-", "_"))(event.draw, pod)

    @property
    def _now(self) -> float:
        return self._life.loop.time()

    # --- traffic ----------------------------------------------------------------------------------

    def _burst(self, draw: float, pod: Pod | None) -> None:
        proxy = self._proxies[int(draw * 1000) % 2]
        for other in (p for p in self._cluster.pods.values() if not p.gone):
            if other is pod or self._life.plan.rng.random() < 0.3:
                proxy.request(other.uid, 0.02 + draw / 5, self._now)

    def _long_request(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self._proxies[0].request(pod.uid, 5 * draw, self._now)

    def _cancel(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self._proxies[int(draw * 1000) % 2].cancel(pod.uid)

    def _proxy_breaks(self, draw: float, pod: Pod | None) -> None:
        proxy, agent = self._proxies[int(draw * 1000) % 2], self._cluster.agent
        if proxy.loop is None:
            return
        proxy.disconnect()

        def back() -> None:
            if self._cluster.agent is agent and agent is not None and proxy.loop is None:
                proxy.connect(agent)

        self._machine.later(2.5 * draw, back)

    def _arrive(self, draw: float, pod: Pod | None) -> None:
        """A packet that is sent again until somebody hears of it, or TCP passes."""
        gates = self._machine.gates
        shut = [uid for uid in gates if not self._cluster.pods[uid].gone]
        if not shut:
            return
        uid = shut[int(draw * len(shut)) % len(shut)]

        def again() -> None:
            if uid in gates and not self._machine.arrive(uid):
                self._machine.later(0.2, again)

        again()

    # --- operators --------------------------------------------------------------------------------

    def _call(self, draw: float, pod: Pod | None) -> None:
        if pod and self._cluster.agent:
            self._cluster.agent.operators.request_wake(pod.uid, "a test")

    def _send_away(self, draw: float, pod: Pod | None) -> None:
        if pod and self._cluster.agent:
            self._cluster.agent.operators.send_away(pod.uid, "a test")

    def _stay_away(self, draw: float, pod: Pod | None) -> None:
        if pod and self._cluster.agent:
            self._cluster.agent.operators.send_away(pod.uid, "a test", stays_away=True)

    def _let_stay(self, draw: float, pod: Pod | None) -> None:
        if pod and self._cluster.agent:
            self._cluster.agent.operators.let_stay(pod.uid)

    def _drain_node(self, draw: float, pod: Pod | None) -> None:
        if self._cluster.agent:
            self._cluster.agent.operators.drain_node("a test")

    def _undrain_node(self, draw: float, pod: Pod | None) -> None:
        if self._cluster.agent:
            self._cluster.agent.operators.undrain_node()

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
        agent = self._cluster.agent
        if pod and agent:
            agent.operators.ask_for_tier(pod.uid, tier)
            agent.operators.send_away(pod.uid, "a test")

    # --- pods and containers ----------------------------------------------------------------------

    def _create(self, draw: float, pod: Pod | None) -> None:
        self._cluster.create(another_pod(self._life.plan, len(self._cluster.pods)))

    def _delete(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self._cluster.delete(pod, self._now, force=False)

    def _force_delete(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self._cluster.delete(pod, self._now, force=True)

    def _container_dies(self, draw: float, pod: Pod | None) -> None:
        if pod and pod.begun:
            self._machine.end_container(pod.uid)

    def _stray_term(self, draw: float, pod: Pod | None) -> None:
        if pod and pod.begun and not pod.deleting:
            self._cluster.term(pod, self._now)

    def _worker_dies(self, draw: float, pod: Pod | None) -> None:
        live = [
            p
            for p in self._machine.procs.values()
            if pod and p.uid == pod.uid and p.alive and p.memory
        ]
        if live and live[-1].handle not in self._machine.frozen:
            self._machine.die(live[-1])

    # --- the node ---------------------------------------------------------------------------------

    def _no_room(self, draw: float, pod: Pod | None) -> None:
        if pod:
            self._life.refused[pod.uid] = "no memory"
            self._kick()

    def _room(self, draw: float, pod: Pod | None) -> None:
        self._life.refused.clear()
        self._kick()

    def _lose_gpu(self, draw: float, pod: Pod | None) -> None:
        gpus = self._life.plan.inventory.gpus
        self._cluster.lose(gpus[int(draw * len(gpus))].uuid)

    def _find_gpu(self, draw: float, pod: Pod | None) -> None:
        self._machine.lost.clear()
        self._cluster.report()

    def _regroup(self, draw: float, pod: Pod | None) -> None:
        self._cluster.report(regroup=True)

    def _kill_agent(self, draw: float, pod: Pod | None) -> None:
        if self._cluster.agent:
            raise Killed

    def _kill_at_write(self, draw: float, pod: Pod | None) -> None:
        self._machine.crash_at = self._machine.journal_writes + 1 + int(draw * 12)
        self._machine.crash_after = int(draw * 1000) % 2 == 0

    def _kick(self) -> None:
        if self._cluster.agent:
            self._cluster.agent.kick()
