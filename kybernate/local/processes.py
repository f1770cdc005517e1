"""Which processes are this box's: each model has a kyb-init of its own, and the rest is below it.

kyb-init is told by its command line where its model's socket is, in a folder that only this user
may enter. Other users' processes may say the same, and aren't believed. So may other programs of
this user; they may do to the models what they like anyway.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.adapters.container.inits import has_ended
from kybernate.adapters.kernel import smallfile
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.errors import NotFoundError, RefusedError
from kybernate.types import PodUid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kybernate.ports import HeldInit

_NAMES = frozenset({"kyb-gate", "kyb-wait", "kyb-run", "kyb-hold", "kyb-parked"})
LOCAL = "--local"


class BoxProcs(Procfs):
    """Implements `kybernate.ports.Procs`. `seats` is the folder with a folder for each model."""

    def __init__(self, seats: Path) -> None:
        super().__init__()
        self._seats = str(seats)
        self._user = str(os.getuid())

    def pod_uid_of(self, pid: int) -> PodUid | None:
        """The model in whose tree the process is, or whose kyb-init it is. NotFoundError."""
        self.start_time(pid)
        while pid > 1:
            try:
                if (uid := self._init_of(pid)) is not None:
                    return uid
                pid = self.parent(pid)
            except NotFoundError:
                return None
        return None

    def inits(self) -> Mapping[PodUid, int]:
        """The kyb-inits that run, by their models."""
        found: dict[PodUid, int] = {}
        for pid in self.processes():
            try:
                uid = self._init_of(pid)
                # A gate that was just forked has its parent's command line.
                if uid is not None and self._init_of(self.parent(pid)) is None:
                    found[uid] = pid
            except NotFoundError:
                continue
        return found

    def _init_of(self, pid: int) -> PodUid | None:
        if pid <= 1 or self.name(pid) not in _NAMES:
            return None
        words = self.command(pid)
        if len(words) < 3 or words[1] != LOCAL:
            return None
        folder, _, name = words[2].rpartition("/")
        home, _, uid = folder.rpartition("/")
        ours = (home, name) == (self._seats, keys.SEAT_SOCKET_NAME) and self._is_own(pid)
        return PodUid(uid) if ours else None

    def _is_own(self, pid: int) -> bool:
        # By its real user: that of a setuid program is who started it.
        return self._status(pid, "Uid").split()[0] == self._user


class BoxInits:
    """Implements `kybernate.ports.Inits`. Whose kyb-init it is, `BoxProcs` has found out."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def admit(self, pidfd: int) -> None:
        """See `ports.Inits.admit`."""
        told = smallfile.read(f"/proc/self/fdinfo/{pidfd}").split("Pid:")
        pid = int(told[1].split()[0]) if len(told) > 1 else -1
        if pid <= 0 or has_ended(pidfd):
            raise NotFoundError("The process has ended.")
        for known in [known for known, held in self._held.items() if has_ended(held)]:
            os.close(self._held.pop(known))
        self._held.setdefault(pid, os.dup(pidfd))

    def there(self, pid: int) -> bool:
        """See `ports.Inits.there`."""
        held = self._held.get(pid)
        return held is not None and not has_ended(held)

    def hold(self, pid: int) -> HeldInit:
        """See `ports.Inits.hold`: only what goes into containers asks."""
        raise RefusedError(f"Process {pid} is in no container.")
