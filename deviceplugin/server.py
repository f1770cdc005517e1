"""The kubelet's DevicePlugin service for one seat resource."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import grpc

from deviceplugin import metrics
from deviceplugin.inventory import NODES
from deviceplugin.offer import allocate, device_list, prefer, still_awaited, why_none
from kybernate import keys
from kybernate.errors import DeadlineError, KybernateError, RefusedError, RetryableError
from kybernate.gen import deviceplugin_pb2
from kybernate.lib import rpc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deviceplugin.board import Board

log = logging.getLogger(__name__)

OPTIONS = deviceplugin_pb2.DevicePluginOptions(
    pre_start_required=True, get_preferred_allocation_available=True
)
_WORKERS = 64
_CREATION_TIME = 60.0
_POLL = 0.2
_STOP_GRACE = 0.5
_NEWS = 3.0
_NEWS_POLL = 0.05
_CODES = (
    (RefusedError, grpc.StatusCode.FAILED_PRECONDITION),
    (RetryableError, grpc.StatusCode.UNAVAILABLE),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
)


class Agent(Protocol):
    """What the service needs of the node agent; see `deviceplugin.agentlink.AgentLink`."""

    def awaited(self, resource: str) -> tuple[str, ...]:
        """Groups that bound pods wait for, oldest first; never raises."""

    def prepare(self, resource: str, ids: Sequence[str], deadline: float) -> str:
        """Prepare a seat within `deadline` seconds, or raise a KybernateError."""


class SeatService:
    """Answers the kubelet for one resource. Nothing that it remembers affects correctness."""

    def __init__(
        self,
        resource: str,
        board: Board,
        agent: Agent,
        deadline: float,
        run_dir: str = keys.SEAT_SOCKET_DIR,
    ) -> None:
        """`deadline` is how long PreStartContainer may take, in seconds.

        `run_dir` is where the agent keeps the folders of IDs on the node.
        """
        self._resource = resource
        self._run_dir = run_dir
        self._board = board
        self._agent = agent
        self._deadline = deadline
        self._lock = threading.Lock()
        self._on_the_way: dict[str, float] = {}
        self._streams = 0
        self.left_at: float | None = None
        """When a kubelet last stopped listening to our list (monotonic), if one ever listened."""
        self._stopped = threading.Event()

    @property
    def listed(self) -> bool:
        """Whether a kubelet is listening to our list now."""
        with self._lock:
            return self._streams > 0

    def stop(self) -> None:
        """End the streams."""
        self._stopped.set()

    def GetDevicePluginOptions(  # noqa: N802 - the API's name
        self, request: deviceplugin_pb2.Empty, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.DevicePluginOptions:
        """Both optional calls are wanted."""
        return OPTIONS

    def ListAndWatch(  # noqa: N802 - the API's name
        self, request: deviceplugin_pb2.Empty, context: grpc.ServicerContext
    ) -> Iterator[deviceplugin_pb2.ListAndWatchResponse]:
        """The list now, and again whenever it changes."""
        self._count(1)
        if not context.add_callback(lambda: self._count(-1)):
            self._count(-1)
            return
        log.info("the kubelet lists %s", self._resource)
        version, inventory = self._board.current()
        shown, sent = 0, None
        while context.is_active() and not self._stopped.is_set():
            if version != shown:
                shown = version
                devices = device_list(inventory, self._resource, self._outstanding())
                if devices != sent:
                    sent = devices
                    yield devices
            version, inventory = self._board.newer(shown, _POLL)

    def GetPreferredAllocation(  # noqa: N802 - the API's name
        self, request: deviceplugin_pb2.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.PreferredAllocationResponse:
        """IDs of the groups that bound pods wait for."""
        awaited = self._awaited()
        answers = []
        for wish in request.container_requests:
            ids = prefer(
                wish.available_deviceIDs,
                wish.must_include_deviceIDs,
                wish.allocation_size,
                awaited,
            )
            awaited = still_awaited(awaited, ids)
            answers.append(deviceplugin_pb2.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return deviceplugin_pb2.PreferredAllocationResponse(container_responses=answers)

    def Allocate(  # noqa: N802 - the API's name
        self, request: deviceplugin_pb2.AllocateRequest, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.AllocateResponse:
        """A pure function of the IDs; see `deviceplugin.offer.allocate`. Refused where the kubelet
        would admit no pod if it had read the list: the pod's owner makes another one elsewhere."""
        _, inventory = self._board.current()
        if why := why_none(inventory, self._resource):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        now = time.monotonic()
        containers = request.container_requests
        with self._lock:
            self._on_the_way.update((seat, now) for one in containers for seat in one.devices_ids)
        metrics.ALLOCATIONS.labels(self._resource).inc(len(containers))
        return allocate(request, inventory, self._run_dir)

    def PreStartContainer(  # noqa: N802 - the API's name
        self, request: deviceplugin_pb2.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.PreStartContainerResponse:
        """Have the agent bind the IDs to the group that their pod was given."""
        ids = tuple(request.devices_ids)
        left = context.time_remaining()
        deadline = self._deadline if left is None else min(self._deadline, left - 0.5)
        try:
            with metrics.PRESTART_SECONDS.labels(self._resource).time():
                seat = self._agent.prepare(self._resource, ids, deadline)
        except KybernateError as error:
            code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
            code = code or grpc.StatusCode.INTERNAL
            metrics.PRESTART_FAILURES.labels(self._resource, code.name).inc()
            log.warning("%s is not prepared: %s", ", ".join(ids), error)
            context.abort(code, str(error))
        else:
            with self._lock:
                for one in ids:
                    self._on_the_way.pop(one, None)
            log.info("%s is prepared as %s", ", ".join(ids), seat)
        return deviceplugin_pb2.PreStartContainerResponse()

    def _awaited(self) -> tuple[str, ...]:
        """Groups of pods that need an ID.

        The kubelet may know of a pod before the agent does. Where its ID decides which GPUs it
        gets, a wrong one can't be mended: then the agent is given time to hear of it.
        """
        _, inventory = self._board.current()
        until = time.monotonic() + (_NEWS if inventory.strategy == NODES else 0.0)
        while True:
            awaited = still_awaited(self._agent.awaited(self._resource), self._outstanding())
            if awaited or time.monotonic() >= until or self._stopped.wait(_NEWS_POLL):
                return awaited

    def _outstanding(self) -> tuple[str, ...]:
        oldest = time.monotonic() - _CREATION_TIME
        with self._lock:
            self._on_the_way = {
                seat: since for seat, since in self._on_the_way.items() if since > oldest
            }
            return tuple(self._on_the_way)

    def _count(self, change: int) -> None:
        with self._lock:
            self._streams += change
            if change < 0:
                self.left_at = time.monotonic()


class SeatServer:
    """A SeatService on its Unix socket."""

    def __init__(self, service: SeatService, socket: Path) -> None:
        """Serves at once. Raises RetryableError if the socket can't be bound."""
        self.service = service
        self._socket = socket
        self._server = grpc.server(ThreadPoolExecutor(_WORKERS, thread_name_prefix=socket.stem))
        rpc.serve(self._server, deviceplugin_pb2.DESCRIPTOR, "DevicePlugin", service)
        try:
            socket.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix:{socket}")
        except (OSError, RuntimeError) as error:
            self._server.stop(None)
            raise RetryableError(f"can't serve on {socket}: {error}") from error
        self._server.start()

    def stop(self) -> None:
        """End all calls and remove the socket."""
        self.service.stop()
        self._server.stop(_STOP_GRACE).wait(_STOP_GRACE + 2)
        self._socket.unlink(missing_ok=True)
