"""A second process on the GPU while the first is parked, and a wake that finds no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.errors import DriverError
from tests.gpu import machine
from tests.gpu.driver import ByAdapter, parker
from tests.gpu.held import Held, model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.here import Answer, Here

_MOST = 8 << 30
_OUT_OF_MEMORY = 2


def answers(here: Here) -> Iterator[Answer]:
    """The last question may cost the first process its life, so it comes last."""
    amount = machine.room(here.uuid, _MOST, 0.6, 2.5)
    with parker(30.0) as ours, model(here.uuid, amount, toy=True) as first:
        expected = first.answer()
        ours.park(first.pid)
        with model(here.uuid, amount, toy=True) as other:
            others = other.answer()
            ours.park(other.pid)
            ours.wake(first.pid)
            equal = first.answer() == expected
            ours.park(first.pid)
            ours.wake(other.pid)
            equal = equal and other.answer() == others
            yield "second.beside", equal, f"{amount >> 20} MiB each, in turns on one GPU"
        yield from _no_room(here, ours, first, expected, amount)


def _no_room(
    here: Here, ours: ByAdapter, first: Held, expected: str, amount: int
) -> Iterator[Answer]:
    """Whoever holds the memory has it until the driver has refused."""
    free = int(machine.memory(here.uuid).free)
    with model(here.uuid, max(1 << 20, free - amount // 2), toy=True):
        try:
            ours.wake(first.pid)
        except DriverError as error:
            yield "second.wake_refused", error.code == _OUT_OF_MEMORY, str(error)
        else:
            yield "second.wake_refused", False, "it woke, though there was no room by NVML"
            yield "second.state_after", "RUNNING", "nothing was refused"
            yield "second.recovers", None, "nothing was refused"
            return
        yield ("second.state_after", *_state(ours, first.pid))
    try:
        ours.wake(first.pid)
        equal = first.answer() == expected
    except (DriverError, AssertionError) as error:
        yield "second.recovers", False, f"again, with room: {error}"
    else:
        yield "second.recovers", equal, "it woke again once there was room"


def _state(ours: ByAdapter, pid: int) -> tuple[str | None, str]:
    try:
        found = ours.state(pid)
    except DriverError as error:
        return None, str(error)
    return found, "by cuCheckpointProcessGetState"
