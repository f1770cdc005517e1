"""A node with a seat in each state of the matrix at once, and what can be seen of it.

Each role has a GPU of its own, and where it takes one a rival for it, so that five seats are
brought into five states and then struck by one fault. Transient states last as long as the
simulated driver holds the call that they wait for.
"""

from __future__ import annotations

import itertools
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import requests

from kybernate import keys
from kybernate.errors import KybernateError, NotFoundError
from tests.cluster.parts import services
from tests.cluster.processes.control import Supervisor, wait_until
from tests.cluster.spec import AGENT_PROBE_PORT, PLUGIN_PROBE_PORT
from tests.cluster.start.readiness import answers
from tests.faults import clock
from tests.faults.clock import WallClock
from tests.faults.matrix import End
from tests.faults.scenes.look import (
    Look,
    children,
    container_runs,
    frozen_pods,
    has_sidecar,
    is_over,
    ready_since,
    restarts,
    sidecar_is_back,
    tasks,
)
from tests.faults.scenes.stream import LIMIT, Stream
from tests.kit.clients.models import Models
from tests.kit.pods import PORT, Pods, SeatPod, ready
from tests.simgpu import Faults, read_log, violations
from tests.simgpu.faults import Call, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.cluster import Cluster, Node, Process
    from tests.faults.scenes.look import Task
    from tests.kit.clients.models import Answer
    from tests.kit.pods import Json

NODE = "n1"
ROLES = ("waiting", "active", "parking", "parked", "waking")
RIVALS = {"waiting": "holder", "parking": "taker", "parked": "winner", "waking": "loser"}
"""Who has, or wants, the GPU of a role."""

GROUPS = {"waiting": 0, "active": 1, "parking": 2, "parked": 3, "waking": 4, "bystander": 5}
"""The GPU of each role; nothing is ever done to the bystander."""

GPUS = len(GROUPS)
STEADY = ("active", "parking", "parked", "waking", "bystander", *RIVALS.values())


_HEALTH = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 2}
PROBES = {"readinessProbe": _HEALTH, "livenessProbe": {**_HEALTH, "failureThreshold": 5}}
"""Probes that would end whoever doesn't answer for ten seconds."""

PUBLISHED = 5.0
"""Seconds by which the node's status may lag behind."""


@dataclass(slots=True)
class Cast:
    """The pods that play now: role → pod."""

    pods: dict[str, str] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def fresh(self, role: str) -> str:
        """A new pod's name for a role."""
        self.pods[role] = f"{role}-{next(self.numbers)}"
        return self.pods[role]


class Scene:
    """The seats of one node. Times in seconds."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.pods = Pods(cluster.api())
        self.cast = Cast()
        self.pending: dict[str, Future[Answer]] = {}
        self._pool = ThreadPoolExecutor(16)
        self._streams: dict[str, Stream] = {}
        self._probed = False
        self.streamed = False
        """Whether the active seat's answer was still streaming when it was let go."""
        self.kills = 0
        """How many processes were killed at random."""
        self.clock = WallClock(cluster.node(NODE).simgpu_root)

    def open(self) -> None:
        """Give the node's processes a clock that can jump; they are started anew for it."""
        self.clock.install()
        for process in (self.node.agent, self.node.plugin):
            process.restart()
        for port in (AGENT_PROBE_PORT, PLUGIN_PROBE_PORT):
            self.wait_answer(port)

    @contextmanager
    def other_agent(self, module: str, env: Mapping[str, str]) -> Iterator[None]:
        """Run another entry point in the agent's place; seats don't notice."""
        made = services.services(self.cluster.spec, self.cluster.layout, self.cluster.ports)
        own = next(one.process for one in made if one.process.name == self.node.agent.name)
        other = replace(own, argv=(sys.executable, "-m", module), env={**own.env, **env})
        supervisor = Supervisor(self.cluster.layout)
        supervisor.add(other)
        try:
            self.wait_answer(AGENT_PROBE_PORT)
            yield
        finally:
            supervisor.add(own)
            self.wait_answer(AGENT_PROBE_PORT)

    @staticmethod
    def kill(process: Process) -> None:
        """kill -9, and wait until the supervisor has started it again."""
        starts = process.starts
        process.kill9()

        def restarted() -> bool:
            if process.info["state"] == "restarting":
                process.start()  # without waiting for its back-off
            return process.starts > starts

        wait_until(restarted, LIMIT, f"{process.name} isn't restarted")

    def wait_answer(self, port: int, path: str = "readyz") -> None:
        """Until a process of the node answers its probe."""
        url = f"http://{self.node.ip}:{port}/{path}"
        wait_until(lambda: answers(url), LIMIT, f"{url} doesn't answer")

    @property
    def node(self) -> Node:
        """The node."""
        return self.cluster.node(NODE)

    @property
    def faults(self) -> Faults:
        """The simulated driver's faults."""
        return Faults(self.node.simgpu_root)

    # --- bringing the seats into their states -------------------------------------------------

    def set(self, *, probed: bool = False) -> dict[str, Look]:
        """Every role in its state. Returns what is seen of each before the fault.

        With `probed` the roles have probes, and so a sidecar that answers them.
        """
        self.pending.clear()
        self._probed = probed
        self._recast()
        for role in ("holder", "active", "bystander", "parked", "waking", "taker"):
            self.ask(role)
        for role in ("winner", "loser", "parking"):
            self.ask(role)
        before = {role: self.look(role, self.ask(role)) for role in self._actives()}
        before |= {role: self.look(role) for role in ("parked", "waking", "taker")}
        for role in ("holder", "active"):
            self._streams[role] = Stream(self.cluster.proxy_url, self.cast.pods[role])
        self._wait_at_the_gate()
        before["waiting"] = self.look("waiting")
        self._hold("parking", Call.LOCK)
        self.send("taker")
        self._hold("waking", Call.RESTORE)
        self.send("waking")
        wanted = {role: role for role in ("waiting", "active", "parking", "parked", "waking")}
        self.wait_states(wanted)
        return before

    @staticmethod
    def _actives() -> tuple[str, ...]:
        return ("holder", "active", "bystander", "winner", "loser", "parking")

    def _recast(self) -> None:
        """Pods that are as good as new stay; the others are replaced."""
        found = self.pods.all()
        keep = {
            role for role in STEADY if self._fits(role, found.get(self.cast.pods.get(role, "")))
        }
        names = {self.cast.pods[role] for role in keep}
        self.remove(name for name in found if name not in names)
        for role in STEADY:
            if role not in keep:
                self.pods.create(self._pod(role))
        self.pods.wait([self.cast.pods[role] for role in STEADY], ready, LIMIT, "Ready")

    def _fits(self, role: str, pod: Json | None) -> bool:
        if pod is None or not ready(pod) or restarts(pod):
            return False
        return has_sidecar(pod) or not (self._probed and role in ROLES)

    def _pod(self, role: str) -> SeatPod:
        group = GROUPS.get(role)
        if group is None:
            group = next(GROUPS[one] for one, rival in RIVALS.items() if rival == role)
        annotations = {keys.REQUIRE_GROUP: f"G{group}"}
        name, more = self.cast.fresh(role), PROBES if self._probed and role in ROLES else {}
        return SeatPod(name, node=NODE, annotations=annotations, env=clock.ENV, more=more)

    def _wait_at_the_gate(self) -> None:
        self.pods.create(self._pod("waiting"))
        name = self.cast.pods["waiting"]
        self.pods.wait([name], container_runs, LIMIT, "running")
        self.wait_states({"waiting": "waiting"})
        uid = self.uid("waiting")
        wait_until(
            lambda: any(task.comm == "kyb-wait" for task in tasks(uid)), LIMIT, "no kyb-init waits"
        )

    def _hold(self, role: str, call: Call) -> None:
        self.faults.inject(Fault.HOLD, call=call, pod=self.uid(role), times=1)

    def release(self) -> None:
        """Let the driver's calls be made, and end the streams that keep GPUs busy."""
        if "active" in self._streams:
            self.streamed = self.streaming("active")
        self.faults.clear(Fault.HOLD)
        for stream in self._streams.values():
            stream.stop()
        self._streams.clear()

    # --- asking -------------------------------------------------------------------------------

    def ask(self, role: str, limit: float = LIMIT) -> Answer:
        """One request; raises unless it is answered well."""
        answer = self._ask(role, limit)
        if answer.status != 200 or not answer.intact:
            raise AssertionError(f"{role} answered {answer.status}: {answer.body}")
        return answer

    def _ask(self, role: str, limit: float) -> Answer:
        models = Models(self.cluster.proxy_url)
        try:
            return models.ask(self.cast.pods[role], limit=limit)
        finally:
            models.close()

    def send(self, role: str, limit: float = LIMIT) -> Future[Answer]:
        """One request, whose answer is awaited later."""
        self.pending[role] = self._pool.submit(self._ask, role, limit)
        return self.pending[role]

    def streaming(self, role: str) -> bool:
        """Whether its stream brings more."""
        return self._streams[role].alive()

    # --- looking ------------------------------------------------------------------------------

    def uid(self, role: str) -> str:
        """The UID of a role's pod."""
        return str(self.pods.get(self.cast.pods[role])["metadata"]["uid"])

    def look(self, role: str, answer: Answer | None = None) -> Look:
        """What is seen of a role's pod, and of its model if it was asked."""
        pod = self.pods.get(self.cast.pods[role])
        told = answer.body["kyb"] if answer else {}
        return Look(
            uid=pod["metadata"]["uid"],
            phase=pod["status"]["phase"],
            ready=ready(pod),
            ready_since=ready_since(pod),
            restarts=restarts(pod),
            boot=told.get("boot", ""),
            counter=told.get("counter", 0),
        )

    def states(self) -> dict[str, str]:
        """The states by pod, as the node's status tells them."""
        status = self.cluster.api().get(f"{keys.GPU_NODES_PATH}/{NODE}")["status"]
        return {seat["pod"]: seat["state"] for seat in status["seats"]}

    def unhealthy(self) -> int:
        """How many GPUs the node's status calls unhealthy, or doesn't name."""
        gpus = self.cluster.api().get(f"{keys.GPU_NODES_PATH}/{NODE}")["status"]["gpus"]
        return GPUS - sum(bool(gpu["healthy"]) for gpu in gpus)

    def wait_states(self, wanted: Mapping[str, str], limit: float = LIMIT) -> None:
        """Until the roles are in these states."""
        names = {self.cast.pods[role]: state for role, state in wanted.items()}
        seen: dict[str, str] = {}

        def reached() -> bool:
            seen.clear()
            seen.update(self.states())
            return all(seen.get(name) == state for name, state in names.items())

        wait_until(reached, limit, lambda: f"wanted {names}, seen {seen}")

    def events(self, role: str) -> list[str]:
        """The sentences of the events of a role's pod."""
        items = self.cluster.api().get(
            "/api/v1/namespaces/default/events",
            {"fieldSelector": f"involvedObject.name={self.cast.pods[role]}"},
        )["items"]
        return [f"{item['reason']}: {item['message']}" for item in items]

    def mothers(self) -> list[int]:
        """The process that the agent's helpers are forked from."""
        return children(self.node.agent.pid)

    def helpers(self) -> list[int]:
        """The processes that make the driver's calls for the agent; none while it is away."""
        with suppress(NotFoundError):
            return [pid for mother in self.mothers() for pid in children(mother)]
        return []

    def tasks(self, role: str) -> list[Task]:
        """The processes of a role's pod."""
        return tasks(self.uid(role))

    def wait_sidecars(self, roles: Iterable[str]) -> None:
        """Until the sidecar of each role has been started again and is ready."""
        names = [self.cast.pods[role] for role in roles]
        self.pods.wait(names, sidecar_is_back, LIMIT, "with its sidecar back")

    # --- after the fault ----------------------------------------------------------------------

    def settle(self, role: str, before: Look, end: End) -> Look:
        """Until the role's pod answers again, or never will; what is seen of it then."""
        name = self.cast.pods[role]
        try:
            if end is End.FAILED:
                self.pods.wait([name], is_over, LIMIT, "failed for good")
                return self.look(role)
            if end is End.RESTARTED:
                self.pods.wait(
                    [name], lambda pod: restarts(pod) > before.restarts, LIMIT, "restarted"
                )
            self.pods.wait([name], ready, LIMIT, "Ready")
            return self.look(role, self.ask(role))
        except (KybernateError, AssertionError, requests.RequestException) as error:
            return replace(self.look(role), problem=f"{error}\n{self.pods.story(name)}")

    def clean(self) -> list[str]:
        """What is wrong with the node as a whole: two holders of a GPU, a tree left frozen."""
        deadline = time.monotonic() + PUBLISHED
        while (left := self._frozen()) and time.monotonic() < deadline:
            time.sleep(0.1)
        records = read_log(self.node.simgpu_root)
        return left + [f"{one.holders} held {one.gpu} together" for one in violations(records)]

    def _frozen(self) -> list[str]:
        """Pods that are frozen though their seats aren't parked; the status may lag a little."""
        seats = self.cluster.api().get(f"{keys.GPU_NODES_PATH}/{NODE}")["status"]["seats"]
        parked = {seat["uid"] for seat in seats if seat["state"] == "parked"}
        left = frozen_pods(self.cluster.spec.cgroup(NODE)) - parked
        return [f"pod {uid} is frozen, but not parked" for uid in left]

    def remove(self, names: Iterable[str]) -> None:
        """Delete pods at once, and wait until they are gone."""
        gone = list(names)
        self.pods.delete(gone, grace=0)
        self.pods.gone(gone, LIMIT)
