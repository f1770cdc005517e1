"""The plugin as a whole: looks at the GPUs, and keeps kubelet and agent in step with them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from deviceplugin import metrics
from deviceplugin.agentlink import AgentLink, Reporter
from deviceplugin.board import Board
from deviceplugin.inventory import (
    HEALTHY,
    UNHEALTHY,
    Sighting,
    all_lost,
    device_list,
    first_inventory,
    next_inventory,
)
from deviceplugin.registrar import Registrar, socket_sign
from deviceplugin.server import SeatService
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deviceplugin.inventory import Inventory
    from kybernate.settings.plugin import PluginSettings, SeatsConfig
    from kybernate.types import Gpu, GpuUuid, Link

log = logging.getLogger(__name__)

_FIRST_TRIES = 1.0
_ATTEND_AGAIN = 0.1
# One look that the driver doesn't answer may be a hiccup, and a seat that turns unhealthy while
# its pod is being admitted fails that pod for good.
_PATIENCE = 2


class Driver(Protocol):
    """What the plugin needs of the GPU driver; calls may raise DriverError."""

    def devices(self) -> Sequence[Gpu]:
        """The GPUs, healthy or not."""

    def links(self) -> Mapping[frozenset[GpuUuid], Link]:
        """How they reach each other."""

    def driver_versions(self) -> tuple[str, str]:
        """Of the driver and of CUDA."""


class Plugin:
    """Owns the inventory. `run` blocks until the event is set."""

    def __init__(self, settings: PluginSettings, config: SeatsConfig, driver: Driver) -> None:
        self._settings = settings
        self._config = config
        self._driver = driver
        self._board = Board()
        self._agent = AgentLink(settings.agent_socket)
        self._reporter = Reporter(
            self._board, self._agent, lambda: socket_sign(settings.agent_socket)
        )
        self._registrar = Registrar(
            settings.kubelet_dir, self._board, self._service, settings.relist_s
        )
        self._failures = 0
        self._trouble = ""

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set. Raises ConfigError if the groups don't fit the node."""
        threads: list[threading.Thread] = []
        inner = threading.Event()
        try:
            self._discover(stop)
            for work in (self._registrar.run, self._reporter.run, self._attend):
                thread = threading.Thread(target=work, args=(inner,), name=work.__qualname__)
                thread.start()
                threads.append(thread)
            while not stop.wait(self._settings.refresh_s):
                self.refresh()
        finally:
            inner.set()
            for thread in threads:
                thread.join()
            self._agent.close()

    def refresh(self) -> None:
        """Look at the GPUs once. Raises ConfigError only before the first inventory."""
        version, before = self._board.current()
        try:
            seen = self._look()
        except KybernateError as error:
            metrics.DISCOVERY_FAILURES.inc()
            self._failures += 1
            self._complain(f"the GPU driver doesn't answer: {error}")
            if version and self._failures >= _PATIENCE:
                self._publish(all_lost(before))
            return
        self._failures = 0
        self._trouble = ""
        if version:
            self._publish(next_inventory(self._config, before, seen))
        elif seen.gpus:
            self._publish(first_inventory(self._config, seen))
        else:
            self._complain("the GPU driver shows no GPU")

    def not_ready(self) -> str | None:
        """Why seats can't be had now, or None."""
        version, inventory = self._board.current()
        if not version:
            cause = f" ({self._trouble})" if self._trouble else ""
            return f"no GPU found yet{cause}; see that the NVIDIA driver is loaded on this node"
        if not inventory.groups:
            return "no profile fits the GPUs of this node; see `kybernate groups`"
        missing = self._registrar.not_listed()
        return f"the kubelet doesn't list {', '.join(missing)} yet" if missing else None

    def _discover(self, stop: threading.Event) -> None:
        self.refresh()
        while not self._board.current()[0] and not stop.wait(_FIRST_TRIES):
            self.refresh()

    def _attend(self, stop: threading.Event) -> None:
        while not stop.wait(_ATTEND_AGAIN):
            self._agent.attend(self._registrar.not_listed, stop)

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("%s; looking again", trouble)
        self._trouble = trouble

    def _look(self) -> Sighting:
        gpus = tuple(self._driver.devices())
        return Sighting(gpus, self._driver.links(), *self._driver.driver_versions())

    def _publish(self, inventory: Inventory) -> None:
        if not self._board.publish(inventory):
            return
        lost = [str(gpu.index) for gpu in inventory.gpus if not gpu.healthy]
        names = ", ".join(group.name for group in inventory.groups)
        log.info("groups %s; GPUs lost: %s", names or "none", ", ".join(lost) or "none")
        for resource in inventory.resources():
            states = [device.health for device in device_list(inventory, resource).devices]
            for health in (HEALTHY, UNHEALTHY):
                metrics.SEATS.labels(resource, health).set(states.count(health))

    def _service(self, resource: str) -> SeatService:
        return SeatService(resource, self._board, self._agent, self._settings.prestart_deadline_s)
