"""Keep every seat resource served and registered at the kubelet that runs now.

Level-triggered: each step compares what should be with what is. A kubelet deletes all sockets of
its folder when it starts and makes a new kubelet.sock, so a new socket (inode and change time), or
our own one missing, means: serve again, then register.

When a stream of ours ends, the kubelet takes the resource's registration apart by name, a moment
later and whichever registration that is by then (`runClient`). It may so stop a newer one for good
while that one's stream continues. So a registration never follows the end of a stream at once; and
if the kubelet ends a stream, or doesn't list us a few seconds after registering, we register again.
"""

from __future__ import annotations

import logging
import secrets
import socket as sockets
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import grpc

from deviceplugin import metrics
from deviceplugin.server import OPTIONS, SeatServer, SeatService
from kybernate import keys
from kybernate.errors import RetryableError
from kybernate.gen import deviceplugin_pb2
from kybernate.lib import rpc
from kybernate.lib.rounds import rounds_blocking

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deviceplugin.board import Board

log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
# The kubelet dials back for up to 10 s before it answers.
REGISTER_DEADLINE = 15.0
RETRY = 1.0
SETTLE = 0.5
"""Seconds between the end of a stream and the next registration."""


def socket_sign(socket: Path) -> tuple[int, int] | None:
    """What tells one socket from a later one at the same path; None if there is none."""
    try:
        status = socket.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def socket_name(resource: str) -> str:
    """A new file name for a resource's socket: kyb.ai/gpu-1x-seat → kyb-gpu-1x-seat-3f9c01.sock.

    Newer kubelets keep registrations apart by it, and a plugin that ends leaves its successor's.
    """
    return f"kyb-{resource.removeprefix(keys.GROUP + '/')}-{secrets.token_hex(3)}.sock"


def remove_leftovers(folder: Path) -> None:
    """Remove the sockets of earlier plugins of ours, which nobody answers."""
    for path in folder.glob(f"kyb-{keys.RESOURCE_PREFIX.partition('/')[2]}*.sock"):
        with closing(sockets.socket(sockets.AF_UNIX)) as link:
            link.settimeout(1.0)
            try:
                link.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.debug("%s is left alone: %s", path, error)


class Endpoint:
    """One resource: its server, and what is known of its registration."""

    def __init__(
        self, resource: str, folder: Path, service: Callable[[str], SeatService], relist: float
    ) -> None:
        """`relist` is how long the kubelet may go without listing us, in seconds."""
        self._resource = resource
        self._folder = folder
        self._socket = folder / socket_name(resource)
        self._make_service = service
        self._relist = relist
        self._server: SeatServer | None = None
        self._own_sign: tuple[int, int] | None = None
        self._served_for: tuple[int, int] | None = None
        self._registered: tuple[int, int] | None = None
        self._unlisted_since: float | None = None
        self._next_try = 0.0
        self._retired: list[threading.Thread] = []
        self._quiet_until = 0.0
        self._registered_at = 0.0

    @property
    def listed(self) -> bool:
        """Whether the kubelet takes our list now."""
        return self._server is not None and self._server.service.listed

    def step(self, kubelet: tuple[int, int] | None, now: float) -> None:
        """Do what is missing. `kubelet` identifies its socket; None while there is none."""
        if kubelet is None or now < self._next_try:
            return
        if self.listed or self._unlisted_since is None:
            self._unlisted_since = now
        try:
            if self._served_for != kubelet or socket_sign(self._socket) != self._own_sign:
                self._serve(kubelet, now)
            if self._registered != kubelet:
                if now >= self._quiet_until:
                    self._register(kubelet)
            elif self._forgotten(now):
                log.warning("the kubelet doesn't list %s; registering again", self._resource)
                self._register(kubelet)
        except RetryableError as error:
            log.warning("%s; trying again in %.0f s", error, error.delay)
            metrics.REGISTRATIONS.labels(self._resource, "failed").inc()
            self._next_try = now + error.delay
            self._registered = None

    def stop(self) -> None:
        """Stop serving and remove the socket."""
        self._retire()
        self._served_for = None
        for thread in self._retired:
            thread.join()

    def _retire(self) -> None:
        """End the server beside the work: a kubelet that has just started doesn't wait for us."""
        if self._server is not None:
            self._retired = [thread for thread in self._retired if thread.is_alive()]
            self._retired.append(threading.Thread(target=self._server.stop))
            self._retired[-1].start()
            self._server = None

    def _forgotten(self, now: float) -> bool:
        """Whether the kubelet has ended a stream, or has begun none for long."""
        if self._server is None or self.listed or self._unlisted_since is None:
            return False
        left = self._server.service.left_at
        if left is not None and left > self._registered_at:
            return now - left > SETTLE
        return now - self._unlisted_since > self._relist

    def _serve(self, kubelet: tuple[int, int], now: float) -> None:
        if self._served_for == kubelet and self.listed:
            self._quiet_until = now + SETTLE
        self._retire()
        self._registered = None
        self._socket = self._folder / socket_name(self._resource)
        self._server = SeatServer(self._make_service(self._resource), self._socket)
        self._own_sign = socket_sign(self._socket)
        self._served_for = kubelet

    def _register(self, kubelet: tuple[int, int]) -> None:
        request = deviceplugin_pb2.RegisterRequest(
            version=API_VERSION,
            endpoint=self._socket.name,
            resource_name=self._resource,
            options=OPTIONS,
        )
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as channel:
            try:
                stub = rpc.Stub(channel, deviceplugin_pb2.DESCRIPTOR, "Registration")
                stub.Register(request, timeout=REGISTER_DEADLINE)
            except grpc.RpcError as error:
                raise RetryableError(
                    f"the kubelet doesn't register {self._resource}: {error.details()}", RETRY
                ) from error
        metrics.REGISTRATIONS.labels(self._resource, "ok").inc()
        log.info("registered %s", self._resource)
        self._registered = kubelet
        self._registered_at = time.monotonic()
        self._unlisted_since = None


class Registrar:
    """All resources of the node. One thread runs it."""

    def __init__(
        self,
        kubelet_dir: Path,
        board: Board,
        service: Callable[[str], SeatService],
        relist: float = 3.0,
    ) -> None:
        """`service` makes the service of a resource, again for each time it is served."""
        self._folder = kubelet_dir / "device-plugins"
        self._board = board
        self._service = service
        self._relist = relist
        self._endpoints: dict[str, Endpoint] = {}

    def step(self, now: float) -> None:
        """Look once at the kubelet's socket and ours. `now` is monotonic, in seconds."""
        _, inventory = self._board.current()
        for resource in inventory.resources():
            if resource not in self._endpoints:
                self._endpoints[resource] = Endpoint(
                    resource, self._folder, self._service, self._relist
                )
        for resource in self._endpoints.keys() - set(inventory.resources()):
            log.info("%s is offered no more", resource)
            self._endpoints.pop(resource).stop()
        kubelet = socket_sign(self._folder / "kubelet.sock")
        for endpoint in list(self._endpoints.values()):
            endpoint.step(kubelet, now)

    def not_listed(self) -> tuple[str, ...]:
        """The resources that the kubelet doesn't list at the moment."""
        _, inventory = self._board.current()
        known = dict(self._endpoints)
        return tuple(
            resource
            for resource in inventory.resources()
            if resource not in known or not known[resource].listed
        )

    def run(self, stop: threading.Event, period: float = 0.1) -> None:
        """Step every `period` seconds until `stop` is set, then remove the sockets."""
        remove_leftovers(self._folder)
        rounds_blocking(lambda: self.step(time.monotonic()), stop, period, "registering")
        for endpoint in self._endpoints.values():
            endpoint.stop()
