"""Whether a restore failed for want of memory: then the same images are good for another try."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import smallfile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_COUNTS = ("memory.events", "memory.oom_control")
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""How a CRIU that was killed ends: its kyb-enter with it, or by its word."""
_SAYS = "Cannot allocate memory"


def lacked(said: Iterable[str]) -> bool:
    """By CRIU's errors. The kernel says the same of too many maps, of too much locked memory, and
    of a PID namespace that ends."""
    return any(_SAYS in line for line in said)


class Watch:
    """Whether something was killed for it. Begin it before CRIU starts. `groups`: the container's
    cgroups by controller."""

    def __init__(self, groups: Mapping[str, Path]) -> None:
        self._group = groups.get("memory") or groups.get("")
        self._before = self._kills()

    def killed(self, code: int) -> bool:
        """By CRIU's exit status, and whom the kernel killed in the container."""
        return code in _KILLED or self._kills() > self._before

    def _kills(self) -> int:
        """How many processes of the container's the kernel has killed for memory."""
        for name in _COUNTS:
            with suppress(OSError):
                for line in smallfile.read(f"{self._group}/{name}").splitlines():
                    word, _, count = line.partition(" ")
                    if word == "oom_kill":
                        return int(count)
        return 0
