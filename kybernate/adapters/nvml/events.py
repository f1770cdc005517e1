"""What NVML tells by itself: Xids, ECC errors, and that a GPU should be looked at.

NVML forgets the sets of events of a session that is ended, and a GPU that doesn't answer can't be
registered for one. So a set is made again with every session, and every few seconds as long as it
lacks a GPU. What happened in between is seen by the next checkup.
"""

from __future__ import annotations

import ctypes
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kybernate.adapters.nvml.calls import TIMEOUT, call
from kybernate.core.doctor.health import EventKind, GpuEvent
from kybernate.errors import DeadlineError, DriverError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from kybernate.types import GpuUuid

    Ask = Callable[[GpuUuid, Callable[[], Any]], Any]

log = logging.getLogger(__name__)

WAIT_MS = 200
_AGAIN = 1.0
_WHOLE_AGAIN = 3.0
_KINDS = {
    2: EventKind.DOUBLE_BIT_ECC,
    8: EventKind.XID,
    2048: EventKind.RETIREMENT_FAILED,
    8192: EventKind.FATAL_POISON,
    16384: EventKind.UNAVAILABLE,
    32768: EventKind.LOOK,
}
"""NVML's types of events that matter; the last one says that the recovery action has changed."""


class EventSet:
    """One set of events of one session. Only its thread uses it."""

    def __init__(self, nvml: Any, gpus: Iterable[GpuUuid], ask: Ask) -> None:
        """Registers `gpus`. Raises DriverError if there can't be a set.

        `ask` makes a call about a GPU, and raises DeadlineError if it hangs.
        """
        self._nvml = nvml
        self._set = call(nvml, "nvmlEventSetCreate", nvml.nvmlEventSetCreate)
        self._names: dict[int | None, GpuUuid] = {}
        self.gpus = frozenset(gpu for gpu in gpus if self._register(gpu, ask))
        """Those whose events it has."""

    def _register(self, gpu: GpuUuid, ask: Ask) -> bool:
        try:
            # A lost GPU can't be asked for its name, so it is known by its handle.
            self._names[ask(gpu, lambda: self._registered(gpu))] = gpu
        except (DriverError, DeadlineError) as error:
            log.debug("no events of %s: %s", gpu, error)
            return False
        return True

    def _registered(self, gpu: GpuUuid) -> int | None:
        """Registers a GPU and returns its handle's number."""
        nvml = self._nvml
        handle = call(nvml, "nvmlDeviceGetHandleByUUID", nvml.nvmlDeviceGetHandleByUUID, gpu)
        name = "nvmlDeviceGetSupportedEventTypes"
        wanted = call(nvml, name, nvml.nvmlDeviceGetSupportedEventTypes, handle) & sum(_KINDS)
        name = "nvmlDeviceRegisterEvents"
        call(nvml, name, nvml.nvmlDeviceRegisterEvents, handle, wanted, self._set)
        return ctypes.cast(handle, ctypes.c_void_p).value

    def wait(self) -> GpuEvent | None:
        """The next event, or None after `WAIT_MS`. Raises DriverError if the set is broken."""
        nvml = self._nvml
        try:
            data = call(nvml, "nvmlEventSetWait", nvml.nvmlEventSetWait_v2, self._set, WAIT_MS)
        except DriverError as error:
            if error.code == TIMEOUT:
                return None
            raise
        gpu = self._names.get(ctypes.cast(data.device, ctypes.c_void_p).value)
        kind = _KINDS.get(int(data.eventType), EventKind.LOOK)
        return GpuEvent(gpu, kind, int(data.eventData))

    def close(self) -> None:
        """Give it back; it may be gone already."""
        with suppress(DriverError):
            call(self._nvml, "nvmlEventSetFree", self._nvml.nvmlEventSetFree, self._set)


class Listener:
    """Tells of events until it is stopped. `session` numbers NVML's sessions; 0 is none."""

    def __init__(
        self,
        open_set: Callable[[], EventSet],
        gpus: Callable[[], Iterable[GpuUuid]],
        session: Callable[[], int],
        gate: threading.Lock,
        tell: Callable[[GpuEvent], None],
    ) -> None:
        """`gate` is held while NVML is used: who holds it may end the session."""
        self._open = open_set
        self._gpus = gpus
        self._session = session
        self._gate = gate
        self._tell = tell
        self._failing = False

    def run(self, stop: threading.Event) -> None:
        """Listen until `stop` is set."""
        while not stop.is_set():
            session = self._session()
            if not session:
                stop.wait(WAIT_MS / 1000)
                continue
            try:
                self._listen(session, stop)
            except DriverError as error:
                if not self._failing:
                    log.warning("no events of GPUs: %s; trying again", error)
                self._failing = True
                self._tell(GpuEvent(None, EventKind.LOOK))
                stop.wait(_AGAIN)

    def _listen(self, session: int, stop: threading.Event) -> None:
        with self._gate:
            events = self._open()
        opened = time.monotonic()
        try:
            while not stop.wait(0.001) and self._session() == session:
                whole = events.gpus.issuperset(self._gpus())
                if not whole and time.monotonic() - opened > _WHOLE_AGAIN:
                    return
                with self._gate:
                    event = events.wait() if self._session() == session else None
                self._failing = False
                if event is not None:
                    self._tell(event)
        finally:
            with self._gate:
                if self._session() == session:
                    events.close()
