"""The seats' sockets, with kyb-init at the other end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kybernate import keys
from kybernate.ports import CooperationPhase
from kybernate.types import GpuUuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.ports import SeatListener
    from kybernate.types import PodUid
    from tests.kit.machine.world import Machine

_VISIBLE: Final = f"{keys.ENV_CUDA_VISIBLE}="


class FakeDoors:
    """Implements `ports.SeatDoors`. Notes what is sent in the machine's log."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def listen(self, listener: SeatListener) -> None:
        """Who is told."""
        self._machine.listener = listener

    async def open(self, uid: PodUid) -> Path:
        """The door is open; a kyb-init that waits connects."""
        fresh = uid not in self._machine.open_doors
        self._machine.open_doors.add(uid)
        if fresh and uid in self._machine.inits:
            asyncio.get_running_loop().call_soon(self._machine.hello, uid)
        return Path("/run/kyb/seats") / uid

    async def close(self, uid: PodUid) -> None:
        """Shut."""
        self._machine.open_doors.discard(uid)

    async def shut(self, uid: PodUid) -> None:
        """Nobody is let in."""
        self._machine.open_doors.discard(uid)

    def go(self, uid: PodUid, generation: int, argv_prefix: Sequence[str]) -> None:
        """Open the gate."""
        self._machine.log.append(("go", uid, str(generation), *argv_prefix))
        words = [word.partition("=")[2] for word in argv_prefix if word.startswith(_VISIBLE)]
        told = tuple(GpuUuid(gpu) for word in words for gpu in word.split(","))
        if told:
            self._machine.apps[uid].gpus = told
        self._machine.go(uid, generation, told)

    def refuse(self, uid: PodUid, sentence: str) -> None:
        """kyb-init exits."""
        self._machine.log.append(("refuse", uid, sentence))
        self._machine.end_container(uid)

    def expect(self, uid: PodUid, root: int) -> None:
        """kyb-init starts nothing."""
        self._machine.log.append(("expect", uid, str(root)))
        self._machine.expect(uid)

    def ok(self, uid: PodUid) -> None:
        """Noted."""
        self._machine.log.append(("ok", uid))

    def tell(self, uid: PodUid, state: str, sentence: str) -> None:
        """Noted, without the sentence."""
        self._machine.log.append(("tell", uid, state))

    async def cooperate(self, uid: PodUid, phase: CooperationPhase, limit: float) -> str:
        """Done at once. Faults: not-cooperating, and worker-joins: a tree that has moved has one
        more process by the time it is parked."""
        self._machine.log.append(("cooperate", uid, phase.value))
        moved = self._machine.moved(uid) if phase is CooperationPhase.PARK else ""
        if moved and self._machine.fault("worker-joins"):
            self._machine.add_worker(moved)
        return "HTTP 500" if self._machine.fault("not-cooperating") else ""
