"""What is asked of one seat by the agent's own API, as somebody on its node does."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from kybernate import keys
from kybernate.cli.agent.link import CALL_LIMIT, connected
from kybernate.gen import agent_pb2 as pb
from tests.cluster.spec import AGENT_PROBE_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.cluster.cluster import Node

STEPS = "kyb_agent_step_seconds"
LIMIT = 300.0
SETTLED = 5.0
_ENDED = ("succeeded", "failed", "cancelled")


class SeatVerbs:
    """Of the seat with this UID."""

    def __init__(self, node: Node, agent: Any, uid: str) -> None:
        self._node, self._agent, self._uid = node, agent, uid

    @classmethod
    @contextlib.contextmanager
    def of(cls, node: Node, pod: Mapping[str, Any]) -> Iterator[SeatVerbs]:
        """Connected to the agent of the pod's node, as somebody on the node is."""
        with connected(f"/proc/{node.pid}/root{keys.AGENT_SOCKET}") as agent:
            yield cls(node, agent, pod["metadata"]["uid"])

    def park(self, tier: str, step: str = "dump") -> tuple[float, dict[str, float]]:
        """Seconds until it is there, and those of each phase of one step."""
        return self._timed(step, self._agent.Park, pb.ParkRequest(uid=self._uid, tier=tier))

    def wake(self, step: str = "restore") -> tuple[float, dict[str, float]]:
        """Seconds until it runs, and those of each phase of one step."""
        return self._timed(step, self._agent.Wake, pb.WakeRequest(uid=self._uid))

    def wake_and(self, then: Callable[[], None]) -> tuple[float, dict[str, float]]:
        """The same; `then` is called as soon as it runs."""
        before = self._phases("restore")
        seconds = self._ended(self._agent.Wake, pb.WakeRequest(uid=self._uid))
        then()
        return seconds, self._grown("restore", before)

    def save(self, tier: str) -> tuple[float, dict[str, float]]:
        """Seconds until it is kept there, and those of each phase."""
        operation, seconds = self._done(self._agent.Save, pb.SaveRequest(uid=self._uid, tier=tier))
        return seconds, {phase.name: phase.seconds for phase in operation.phases}

    def move(self, successor: str) -> float:
        """Seconds until the successor goes on with the state."""
        request = pb.MoveRequest(uid=self._uid, successor=successor)
        return self._ended(self._agent.Move, request)

    def _timed(self, step: str, call: Any, request: Any) -> tuple[float, dict[str, float]]:
        before = self._phases(step)
        seconds = self._ended(call, request)
        return seconds, self._grown(step, before)

    def _ended(self, call: Any, request: Any) -> float:
        """Seconds until what is asked for has succeeded."""
        return self._done(call, request)[1]

    def _done(self, call: Any, request: Any) -> tuple[Any, float]:
        began = time.monotonic()
        operation = call(request, timeout=CALL_LIMIT)
        asked = pb.GetOperationRequest(name=operation.name)
        for operation in self._agent.WatchOperation(asked, timeout=LIMIT):
            if operation.state in _ENDED:
                break
        seconds = time.monotonic() - began
        if operation.state != "succeeded":
            raise SystemExit(f"{operation.kind} {operation.state}: {operation.sentence}")
        return operation, seconds

    def _grown(self, step: str, before: Mapping[str, float]) -> dict[str, float]:
        """The phases' seconds, once they are counted: a moment after the operation's end."""
        until = time.monotonic() + SETTLED
        while (now := self._phases(step)) == before and time.monotonic() < until:
            time.sleep(0.01)
        return {phase: seconds - before.get(phase, 0.0) for phase, seconds in now.items()}

    def _phases(self, step: str) -> dict[str, float]:
        return {phase: value for (one, phase), value in self.steps().items() if one == step}

    def steps(self) -> dict[tuple[str, str], float]:
        """Seconds so far, by step and phase, of all seats of the node."""
        url = f"http://{self._node.ip}:{AGENT_PROBE_PORT}/metrics"
        with requests.Session() as session:
            session.trust_env = False
            text = session.get(url, timeout=CALL_LIMIT).text
        return {
            (sample.labels["operation"], sample.labels["phase"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"{STEPS}_sum"
        }
