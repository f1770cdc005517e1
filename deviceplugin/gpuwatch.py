"""Keeps an eye on the GPUs: events of the driver, and a checkup of each GPU every second or so."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from deviceplugin import metrics
from kybernate.core.doctor.health import Checkup, EventKind, GpuEvent, Health
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kybernate.types import Gpu, GpuUuid, Link

    Troubles = Mapping[GpuUuid, str]

log = logging.getLogger(__name__)

# One call that fails may be a hiccup, and a seat that turns unhealthy while its pod is being
# admitted fails that pod for good.
_SECOND_LOOK = 0.2
_RELOAD_FIRST = 2.0
_RELOAD_LAST = 8.0


class Driver(Protocol):
    """What the plugin needs of the GPU driver; calls may raise DriverError, DeadlineError."""

    def devices(self) -> Sequence[Gpu]:
        """The GPUs that there are, and were."""

    def links(self) -> Mapping[frozenset[GpuUuid], Link]:
        """How they reach each other."""

    def driver_versions(self) -> tuple[str, str]:
        """Of the driver and of CUDA."""

    def checkup(self, gpu: GpuUuid) -> Checkup:
        """How a GPU is; never raises."""

    def reload(self) -> None:
        """Begin another session with the driver."""

    def watch(self, tell: Callable[[GpuEvent], None], stop: threading.Event) -> None:
        """Tell of events until `stop` is set."""


class GpuWatch:
    """Knows which GPUs are ill, and says so at once. Any thread may call."""

    def __init__(self, driver: Driver, changed: Callable[[Troubles], None], settle: float) -> None:
        """`changed` is told all troubles whenever one begins or ends; it must be quick.

        `settle` is for how many seconds a GPU must be found in order after it was ill.
        """
        self._driver = driver
        self._changed = changed
        self._lock = threading.Lock()
        self._health = Health(settle)
        self._known: tuple[GpuUuid, ...] = ()
        self._told: dict[GpuUuid, str] = {}
        self._pause = _RELOAD_FIRST
        self._reload_at: float | None = None
        self.look_now = threading.Event()
        """Set when the driver says that something has changed."""

    def remember(self, troubles: Troubles) -> None:
        """Take over what was known before the start."""
        self._told = dict(troubles)
        self._health.recall(troubles)

    def told(self, event: GpuEvent) -> None:
        """An event of the driver."""
        number = str(event.data) if event.kind is EventKind.XID else ""
        metrics.GPU_EVENTS.labels(event.gpu or "unknown", event.kind.value, number).inc()
        with self._lock:
            ill = self._health.told(event)
            if ill:
                self._tell()
        if not ill:
            self.look_now.set()

    def look(self, gpus: Iterable[GpuUuid]) -> None:
        """Ask each GPU how it is; a driver that has lost one is asked to begin again."""
        self._known = tuple(gpus)
        gone = [gpu for gpu in self._known if self._check(gpu)]
        doubtful = [gpu for gpu in gone if gpu not in self._told]
        if doubtful:
            time.sleep(_SECOND_LOOK)
            for gpu in doubtful:
                self._check(gpu, sure=True)
        if gone:
            self._reload_soon(time.monotonic())
        else:
            self._reload_at, self._pause = None, _RELOAD_FIRST

    def _check(self, gpu: GpuUuid, *, sure: bool = False) -> bool:
        """Ask one GPU; whether it gave no answer, which is believed at once only if `sure`."""
        found = self._driver.checkup(gpu)
        metrics.show(gpu, found.readings)
        if not found.gone or sure or gpu in self._told:
            with self._lock:
                self._health.checked(gpu, found, time.monotonic())
                self._tell()
        return bool(found.gone)

    def _tell(self) -> None:
        known = {*self._known, *self._told}
        troubles = {gpu: text for gpu in known if (text := self._health.trouble(gpu))}
        if troubles == self._told:
            return
        for gpu in troubles.keys() - self._told.keys():
            log.warning("%s is ill: %s", gpu, troubles[gpu])
        for gpu in self._told.keys() - troubles.keys():
            log.info("%s is well again", gpu)
        self._told = troubles
        self._changed(troubles)

    def _reload_soon(self, now: float) -> None:
        if self._reload_at is None:
            self._reload_at = now + self._pause
        if now < self._reload_at:
            return
        result = "failed"
        with suppress(KybernateError):
            self._driver.reload()
            result = "ok"
        metrics.DRIVER_RELOADS.labels(result).inc()
        self._pause = min(2 * self._pause, _RELOAD_LAST)
        self._reload_at = time.monotonic() + self._pause
