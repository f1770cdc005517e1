"""The plugin's side of the node agent's socket.

The agent may be away at any time: registering and listing continue without it, advice falls back to
a fixed order, and preparing a seat waits for it as long as the kubelet's patience allows, because
the kubelet itself tries again only after 11 to 15 seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import grpc

from deviceplugin import metrics
from deviceplugin.inventory import Held, Holdings, inventory_report
from kybernate.errors import DeadlineError, RefusedError, RetryableError
from kybernate.gen import agent_pb2
from kybernate.lib import rpc
from kybernate.lib.retry import retry_blocking, steadily
from kybernate.lib.rounds import rounds_blocking
from kybernate.types import GroupName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from deviceplugin.board import Board
    from deviceplugin.inventory import Inventory

log = logging.getLogger(__name__)

ADVICE_DEADLINE = 0.5
REPORT_DEADLINE = 5.0
_PAUSE = 0.25
_PAUSES = steadily(_PAUSE)
_PRESENCE = 0.05
_TRY_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
_CHANNEL = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class AgentLink:
    """Calls to the agent. Safe to use from many threads."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL)
        self._agent = rpc.Stub(self._channel, agent_pb2.DESCRIPTOR, "NodeAgent")

    def awaited(self, resource: str) -> tuple[str, ...]:
        """The groups that bound pods wait for, oldest first; none while the agent is away."""
        request = agent_pb2.AwaitedGroupsRequest(resource=resource)
        try:
            answer = self._agent.AwaitedGroups(request, timeout=ADVICE_DEADLINE)
        except grpc.RpcError as error:
            log.info("the agent gives no advice for %s: %s", resource, error.details())
            return ()
        return tuple(answer.groups)

    def prepare(self, resource: str, ids: Sequence[str], deadline: float) -> str:
        """Have the agent prepare the seat of the pod that holds `ids`; the seat's name.

        Tries for `deadline` seconds. Raises RefusedError with the agent's sentence,
        RetryableError with its last one, or DeadlineError if it never answered.
        """
        end = time.monotonic() + deadline
        request = agent_pb2.PrepareSeatRequest(resource=resource, device_ids=ids)
        said: list[Exception] = []

        def ask() -> str:
            left = max(0.0, end - time.monotonic())
            try:
                answer = self._agent.PrepareSeat(request, timeout=left, wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise said[-1] if said else self._silent(deadline) from error
                if error.code() not in _TRY_AGAIN:
                    raise RefusedError(error.details()) from error
                raise RetryableError(error.details()) from error
            return str(answer.seat)

        return retry_blocking(ask, said.append, on=RetryableError, pauses=_PAUSES, until=end)

    def _silent(self, deadline: float) -> DeadlineError:
        return DeadlineError(
            f"the node agent didn't answer on {self._socket} within {deadline:.0f} s; "
            "see that kyb-agent runs on this node"
        )

    def report(self, inventory: Inventory) -> None:
        """Tell the agent what the node has. Raises RetryableError if it doesn't take it."""
        try:
            self._agent.ReportInventory(inventory_report(inventory), timeout=REPORT_DEADLINE)
        except grpc.RpcError as error:
            raise RetryableError(f"the agent took no inventory: {error.details()}") from error

    def attend(self, unlisted: Callable[[], Sequence[str]], stop: threading.Event) -> None:
        """Hold a stream that says the plugin lives; returns when it breaks or `stop` is set.

        `unlisted` names the resources that the kubelet doesn't list at the moment.
        """
        over = threading.Event()

        def presence() -> Iterator[agent_pb2.Attendance]:
            told: tuple[str, ...] | None = None
            while not over.is_set() and not stop.wait(_PRESENCE):
                now = tuple(unlisted())
                if now != told:
                    told = now
                    yield agent_pb2.Attendance(unlisted=now)

        call = self._agent.Attend.future(presence(), wait_for_ready=True)
        call.add_done_callback(lambda _: over.set())
        while not over.wait(_PAUSE):
            if stop.is_set():
                call.cancel()

    def follow(self, tell: Callable[[Holdings], None], stop: threading.Event) -> None:
        """Tell what is held, at each change; returns when the agent is away or `stop` is set."""
        over = threading.Event()
        call = self._agent.WatchHoldings(agent_pb2.WatchHoldingsRequest(), wait_for_ready=True)

        def read() -> None:
            try:
                for message in call:
                    tell(_holdings(message))
            except grpc.RpcError as error:
                log.debug("the agent's word on what is held ends: %s", error)
            finally:
                over.set()

        reader = threading.Thread(target=read, name="holdings")
        reader.start()
        while not over.wait(_PAUSE):
            if stop.is_set():
                call.cancel()
        reader.join()

    def close(self) -> None:
        """Give the connection back; calls under way end with an error."""
        self._channel.close()


def _holdings(message: agent_pb2.Holdings) -> Holdings:
    return Holdings(
        int(message.park_budget_bytes),
        tuple(
            Held(seat.device_id, GroupName(seat.group), int(seat.vram_bytes) or None)
            for seat in message.seats
        ),
    )


class Reporter:
    """Keeps the agent's inventory in step: at the start, on change, and when the agent is back."""

    def __init__(self, board: Board, agent: AgentLink, sign: Callable[[], object | None]) -> None:
        """`sign` identifies the agent's socket as it is now; None while there is none."""
        self._board = board
        self._agent = agent
        self._sign = sign
        self._told: tuple[bytes, object] | None = None
        self._version: tuple[int, object] | None = None
        self._failing = False

    def step(self) -> None:
        """Report if the inventory or the agent's socket is another than at the last report."""
        version, inventory = self._board.current()
        sign = self._sign()
        if not self._board.sure or sign is None or self._version == (version, sign):
            return
        said = inventory_report(inventory).SerializeToString(deterministic=True)
        if self._told != (said, sign) and not self._report(inventory):
            return
        self._told, self._version = (said, sign), (version, sign)

    def _report(self, inventory: Inventory) -> bool:
        try:
            self._agent.report(inventory)
        except RetryableError as error:
            metrics.REPORTS.labels("failed").inc()
            if not self._failing:
                log.warning("%s; trying again until it does", error)
            self._failing = True
            return False
        metrics.REPORTS.labels("ok").inc()
        log.info("the agent knows %d groups of this node", len(inventory.groups))
        self._failing = False
        return True

    def run(self, stop: threading.Event, period: float = 0.1) -> None:
        """Step every `period` seconds until `stop` is set."""
        rounds_blocking(self.step, stop, period, "reporting")
