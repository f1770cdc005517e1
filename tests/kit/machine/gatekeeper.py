"""The gate that holds TCP back while a tree is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.machine.world import Machine


class FakeGatekeeper:
    """Implements `ports.Gatekeeper`. Faults: shut-fails, shut-refused, open-fails,
    cut-refused, plain-refused, plain-fails."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def shut(
        self, init: int, on_arrival: Callable[[str], None], deadline: float, port: int = 0
    ) -> None:
        """From now on what `arrive` brings is told."""
        process = self._machine.procs.get(init)
        if process is None or not process.alive:
            raise NotFoundError(f"process {init} is gone")
        if self._machine.fault("shut-fails"):
            raise OSError(1, "Operation not permitted")
        if self._machine.fault("shut-refused"):
            raise RefusedError("its pod shares the node's network (hostNetwork)")
        self._machine.gates[process.uid] = on_arrival

    async def cut(self, init: int, deadline: float) -> None:
        """Nothing passes any more."""
        if self._machine.fault("cut-refused"):
            raise RefusedError("its pod shares the node's network (hostNetwork)")
        self._machine.cut.add(self._machine.procs[init].uid)

    async def plain(self, init: int, deadline: float) -> None:
        """No MPTCP from now on."""
        if self._machine.fault("plain-fails"):
            raise OSError(1, "Operation not permitted")
        if self._machine.fault("plain-refused"):
            raise RefusedError("its pod shares the node's network (hostNetwork)")
        self._machine.log.append(("plain", self._machine.procs[init].uid))

    async def open(self, init: int, deadline: float) -> int:
        """TCP passes; what `arrive` brought was one packet each time."""
        if self._machine.fault("open-fails"):
            raise OSError(1, "Operation not permitted")
        process = self._machine.procs.get(init)
        if process is None or not process.alive or process.uid not in self._machine.gates:
            return 0
        return int(self._machine.gates.pop(process.uid) is None)
