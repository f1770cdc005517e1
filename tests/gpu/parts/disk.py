"""A parked process goes to the disk by the agent's own dumper, is ended, and comes back."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tests.gpu import machine
from tests.gpu.driver import parker
from tests.gpu.machine import SkippedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gpu.here import Answer, Here

_MOST = 8 << 30
_DUMPS = 0.5
"""Share of the time for dumps and restores; starts get what is left."""
_COPIES = 2.5
"""The disk must take the image, the weights, and half of that again."""


def answers(here: Here) -> Iterator[Answer]:
    """By time: one round at least of each."""
    if machine.is_gvisor():
        raise SkippedError("CRIU needs a Linux kernel, and gVisor answers the system calls here")
    from tests.gpu import disk  # noqa: PLC0415 - may lack what it needs
    from tests.gpu.box import MissingError  # noqa: PLC0415 - ditto

    free = shutil.disk_usage(here.disk).free
    most = min(_MOST, int(free / _COPIES))
    amount = machine.room(here.uuid, most, 0.4, 2.5)
    try:
        with parker() as driver:
            found = disk.measure(driver, here.uuid, amount, _by_time(here), here.disk, toy=False)
    except (MissingError, PermissionError) as error:
        raise SkippedError(f"{error} (user {os.geteuid()})") from error
    said = f"the median of {len(found.dump)}, on {here.disk}"
    for name, (value, _) in found.figures().items():
        yield f"disk.{name}", value, said
    equal = f"{len(found.restore)} restores, {len(found.template)} starts from the image"
    yield "disk.answers_equal", True, equal
    meanwhile = True if found.cold else None
    yield "disk.second_meanwhile", meanwhile, f"{len(found.cold)} cold starts meanwhile"


def _by_time(here: Here) -> Callable[[str, int], bool]:
    ends = {"dump": here.until - (1 - _DUMPS) * here.left(), "start": here.until}
    asked: dict[str, Callable[[int], bool]] = {}

    def another(phase: str, number: int) -> bool:
        if phase not in asked:
            asked[phase] = here.another(ends[phase])
        return asked[phase](number)

    return another
