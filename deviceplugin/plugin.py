"""The plugin as a whole: looks at the GPUs, and keeps kubelet and agent in step with them."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from deviceplugin import metrics, profiles
from deviceplugin.agentlink import AgentLink, Reporter
from deviceplugin.board import Board
from deviceplugin.gpuwatch import GpuWatch
from deviceplugin.inventory import (
    Sighting,
    first_inventory,
    next_inventory,
    reformed,
    with_health,
)
from deviceplugin.offer import HEALTHY, UNHEALTHY, offer, withheld
from deviceplugin.registrar import Registrar, socket_sign
from deviceplugin.server import SeatService
from deviceplugin.state import Remembered, StateFile
from kybernate.errors import ConfigError, KybernateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deviceplugin.gpuwatch import Driver
    from deviceplugin.inventory import Holdings, Inventory
    from kybernate.settings.plugin import PluginSettings, SeatsConfig
    from kybernate.types import GpuUuid

log = logging.getLogger(__name__)

_FIRST_TRIES = 1.0
_AGAIN = 0.1
_TICK = 0.2


class Plugin:
    """Owns the inventory. `run` blocks until the event is set."""

    def __init__(self, settings: PluginSettings, driver: Driver) -> None:
        self._settings = settings
        self._driver = driver
        self._board = Board()
        self._lock = threading.Lock()
        self._agent = AgentLink(settings.agent_socket)
        self._reporter = Reporter(
            self._board, self._agent, lambda: socket_sign(settings.agent_socket)
        )
        self._registrar = Registrar(
            settings.kubelet_dir, self._board, self._service, settings.relist_s
        )
        self._watch = GpuWatch(driver, self._health_changed, settings.recovery_s)
        self._file = profiles.ProfilesFile(settings.profiles)
        self._state = StateFile(settings.state_dir)
        self._text = profiles.DEFAULTS
        self._config: SeatsConfig = profiles.parse(profiles.DEFAULTS)
        self._agent_follows = False
        self._due: dict[str, float] = {}
        self._saved = 0
        self._trouble = ""

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set. Raises ConfigError if the groups don't fit the node,
        RefusedError if a newer plugin's inventory can't be read."""
        threads: list[threading.Thread] = []
        inner = threading.Event()
        started = time.monotonic()
        try:
            self._begin()
            threads += self._start(inner)
            while not stop.is_set():
                self._tick(time.monotonic(), started)
                self._watch.look_now.wait(min(_TICK, self._settings.health_s))
        finally:
            inner.set()
            for thread in threads:
                thread.join(1.0 if thread.daemon else None)
            self._agent.close()

    def _start(self, stop: threading.Event) -> list[threading.Thread]:
        works = (self._registrar.run, self._reporter.run, self._attend, self._follow)
        threads = [threading.Thread(target=work, args=(stop,)) for work in works]
        # A call to a driver that hangs must not keep the process from ending.
        listen = threading.Thread(
            target=self._driver.watch, args=(self._watch.told, stop), daemon=True
        )
        for thread in (*threads, listen):
            thread.start()
        return [*threads, listen]

    def not_ready(self) -> str | None:
        """Why seats can't be had now, or None."""
        version, inventory = self._board.current()
        cause = f" ({self._trouble})" if self._trouble else ""
        if not version:
            return f"no GPU found yet{cause}; see that the NVIDIA driver is loaded on this node"
        if not self._board.sure:
            return f"the GPUs known from before aren't confirmed yet{cause}"
        if not inventory.groups:
            return "no profile fits the GPUs of this node; see `kybernate groups`"
        missing = self._registrar.not_listed()
        return f"the kubelet doesn't list {', '.join(missing)} yet" if missing else None

    # --- what happens over and over -----------------------------------------------------------

    def _begin(self) -> None:
        """Offer at once what an earlier plugin knew: at a reboot, pods are admitted early."""
        remembered = self._state.load()
        if remembered is not None:
            try:
                self._config = profiles.parse(remembered.profiles)
            except ConfigError as error:
                log.warning("the profiles from before are forgotten: %s", error)
            else:
                self._text = remembered.profiles
                self._watch.remember(remembered.inventory.troubles)
                inventory = with_health(remembered.inventory, remembered.inventory.troubles)
                self._change(lambda _: inventory)
                return
        self._text = self._file.read()
        self._config = profiles.parse(self._text)

    def _tick(self, now: float, started: float) -> None:
        settings = self._settings
        if not self._board.sure:
            if self._is_due("discover", now, min(_FIRST_TRIES, settings.refresh_s)):
                self._discover(now - started)
        else:
            asked = self._watch.look_now.is_set()
            if self._is_due("look", now, settings.health_s) or asked:
                self._watch.look_now.clear()
                self._watch.look(gpu.uuid for gpu in self._board.current()[1].gpus)
            if self._is_due("refresh", now, settings.refresh_s):
                self._refresh()
            if self._is_due("reload", now, settings.reload_s):
                self._reload()
        self._save()

    def _is_due(self, what: str, now: float, period: float) -> bool:
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + period
        return True

    def _discover(self, waited: float) -> None:
        """The first look at the GPUs. Raises ConfigError."""
        version, _ = self._board.current()
        seen = self._look()
        if seen is None:
            if version and waited > self._settings.boot_grace_s:
                log.warning("no driver %.0f s after the start: all GPUs count as lost", waited)
                self._board.sure = True
            return
        if not version and not self._usable(seen):
            return
        if version:
            self._change(lambda before: next_inventory(self._config, before, seen))
        else:
            first = first_inventory(self._config, seen)
            self._change(lambda before: replace(first, holdings=before.holdings))
        self._watch.look(gpu.uuid for gpu in self._board.current()[1].gpus)
        self._board.sure = True

    def _usable(self, seen: Sighting) -> bool:
        """Whether there are GPUs here, and nobody else divides them up."""
        if not seen.gpus:
            self._complain("the GPU driver shows no GPU")
            return False
        for gpu in seen.gpus:
            divided = self._driver.checkup(gpu.uuid).divided()
            if divided:
                self._complain(f"GPU {gpu.index} ({gpu.uuid}) can't have seats: {divided}")
                return False
        return True

    def _refresh(self) -> None:
        seen = self._look()
        if seen is not None:
            self._change(lambda before: next_inventory(self._config, before, seen))

    def _look(self) -> Sighting | None:
        try:
            gpus = tuple(self._driver.devices())
            seen = Sighting(gpus, self._driver.links(), *self._driver.driver_versions())
        except KybernateError as error:
            metrics.DISCOVERY_FAILURES.inc()
            self._complain(f"the GPU driver doesn't answer: {error}")
            return None
        self._trouble = ""
        return seen

    def _reload(self) -> None:
        """Take over the profiles file if it has changed and is right."""
        text = ""
        try:
            text = self._file.read()
            if text != self._text and not self._reform(profiles.parse(text), text):
                return
        except ConfigError as error:
            self._file.refuse(text, error)
        else:
            self._file.accept()

    def _reform(self, config: SeatsConfig, text: str) -> bool:
        """Form groups again; not before the agent says which groups are held. Raises
        ConfigError."""
        with self._lock:
            _, before = self._board.current()
            held = before.held() if self._agent_follows else None
            if held is None:
                self._complain(
                    "the new profiles wait for the agent, who knows which groups are held"
                )
                return False
            self._board.publish(reformed(config, before, held))
            self._config, self._text = config, text
        log.info("the new profiles are in force")
        metrics.PROFILES_RELOADS.inc()
        self._show()
        return True

    def _save(self) -> None:
        version, inventory = self._board.current()
        if self._board.sure and version != self._saved:
            self._state.save(Remembered(inventory, self._text))
            self._saved = version

    # --- the agent ----------------------------------------------------------------------------

    def _attend(self, stop: threading.Event) -> None:
        while not stop.wait(_AGAIN):
            self._agent.attend(self._registrar.not_listed, stop)

    def _follow(self, stop: threading.Event) -> None:
        while not stop.wait(_AGAIN):
            self._agent.follow(self._held, stop)
            self._agent_follows = False

    def _held(self, holdings: Holdings) -> None:
        self._agent_follows = True
        resources = self._board.current()[1].resources()
        awaited = tuple(group for one in resources for group in self._agent.awaited(one))
        told = replace(holdings, awaited=awaited)
        self._change(lambda before: replace(before, holdings=told))

    # --- changes ------------------------------------------------------------------------------

    def _health_changed(self, troubles: Mapping[GpuUuid, str]) -> None:
        self._change(lambda before: with_health(before, troubles))

    def _change(self, change: Callable[[Inventory], Inventory]) -> None:
        with self._lock:
            _, before = self._board.current()
            changed = self._board.publish(change(before))
        if changed:
            self._show()

    def _show(self) -> None:
        _, inventory = self._board.current()
        lost = [str(gpu.index) for gpu in inventory.gpus if not gpu.healthy]
        names = ", ".join(group.name for group in inventory.groups)
        log.debug("groups %s; GPUs lost: %s", names or "none", ", ".join(lost) or "none")
        for gpu in inventory.gpus:
            metrics.GPU_HEALTHY.labels(gpu.uuid).set(gpu.healthy)
        for resource in inventory.resources():
            states = list(offer(inventory, resource).values())
            for health in (HEALTHY, UNHEALTHY):
                metrics.SEATS.labels(resource, health).set(states.count(health))
            metrics.WITHHELD.labels(resource).set(withheld(inventory, resource))

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("%s; looking again", trouble)
        self._trouble = trouble

    def _service(self, resource: str) -> SeatService:
        settings = self._settings
        return SeatService(
            resource,
            self._board,
            self._agent,
            settings.prestart_deadline_s,
            str(settings.agent_socket.parent),
        )
