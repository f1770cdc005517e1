"""Has one kyb-init of each model running, as the kubelet does for containers.

It waits at the gate until its model's turn has come. When it ends, whatever the reason, another one
is started, at once or, after short lives, later. They outlive this process: a kyb-init that an
earlier one started is taken over by its PID.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Protocol

from kybernate import keys
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from kybernate.lib import netns
from kybernate.lib.retry import Pauses
from kybernate.local.processes import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kybernate.local.logs import Log
    from kybernate.types import PodUid

log = logging.getLogger(__name__)

_PAUSES = Pauses(0.05, 30.0, growth=3.0, jitter=0.0)
_LONG = 30.0
"""Seconds: who lived as long is started again at once."""
_INSIDE = """
set -e
echo 0 >"$1/cgroup.procs"
shift
mount --make-rslave /
mount -t proc -o nosuid,nodev,noexec proc /proc
exec "$@"
"""
"""What a shell does in a model's new namespaces: kyb-init is the last of it."""


class Groups(Protocol):
    """The cgroups of models' containers."""

    def group(self, uid: PodUid) -> Path:
        """Of this model, made if it isn't there. Raises ConfigError."""
        ...

    def models(self) -> frozenset[PodUid]:
        """Those that have one."""
        ...

    def forget(self, uid: PodUid) -> None:
        """Its kyb-init has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """What a model's kyb-init starts at its turn, and where it writes."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Log


@dataclass(slots=True)
class _One:
    """A model's kyb-init. `child`: if this process started it; `pidfd` while it runs."""

    command: Command
    pauses: Iterator[float]
    pid: int = 0
    pidfd: int = -1
    child: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    stays: bool = True
    timer: asyncio.TimerHandle | None = None


class Launcher:
    """All calls come from one running event loop. `ended` is told of each kyb-init that ended
    though nobody released it, and of its status if that is known. With `groups` each is process 1
    of a container: processes, mounts and System V IPC of its own, in a cgroup of these."""

    def __init__(
        self,
        kyb_init: Path,
        seats: Path,
        ended: Callable[[PodUid, int | None], None],
        groups: Groups | None = None,
    ) -> None:
        self._kyb_init, self._seats, self._ended = kyb_init, seats, ended
        self._groups = groups
        self._ones: dict[PodUid, _One] = {}

    def keep(self, uid: PodUid, command: Command, pid: int | None = None) -> None:
        """Have one running from now on; the one that runs already is `pid`."""
        one = self._ones[uid] = _One(command, iter(_PAUSES))
        if pid is None or not self._watch(uid, one, pid):
            self._start(uid, one)

    def pid(self, uid: PodUid) -> int | None:
        """Of the kyb-init that runs now."""
        one = self._ones.get(uid)
        return one.pid if one is not None and one.pidfd >= 0 else None

    def running(self) -> tuple[PodUid, ...]:
        """Whose kyb-init runs now, or is to be started again; released ones, too."""
        return tuple(self._ones)

    def started(self) -> tuple[PodUid, ...]:
        """The same, without those that an earlier process started."""
        return tuple(uid for uid, one in self._ones.items() if one.child or one.pidfd < 0)

    def release(self, uid: PodUid) -> None:
        """None is started any more once this one has ended."""
        one = self._ones.get(uid)
        if one is None:
            return
        one.stays = False
        if one.timer is not None:
            one.timer.cancel()
        if one.pidfd < 0:
            del self._ones[uid]

    def signal(self, uid: PodUid, signum: signal.Signals) -> bool:
        """Send it; whether one runs."""
        one = self._ones.get(uid)
        if one is None or one.pidfd < 0:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(one.pidfd, signum)
        return True

    def tidy(self) -> None:
        """Forget cgroups of models that have ended: a last process may have been in them then."""
        if self._groups is not None:
            for uid in self._groups.models() - self._ones.keys():
                self._groups.forget(uid)

    def leave(self) -> None:
        """Watch none any more; those that run continue."""
        for one in self._ones.values():
            if one.timer is not None:
                one.timer.cancel()
            if one.pidfd >= 0:
                asyncio.get_running_loop().remove_reader(one.pidfd)
                os.close(one.pidfd)
            if one.child is not None:
                one.child.returncode = 0  # it is nobody's to wait for
        self._ones.clear()

    def _start(self, uid: PodUid, one: _One) -> None:
        one.timer, one.began = None, time.monotonic()
        socket = self._seats / uid / keys.SEAT_SOCKET_NAME
        words = [str(self._kyb_init), LOCAL, str(socket), "--", *one.command.argv]
        try:
            one.child = self._spawn(uid, words, one.command)
        except (OSError, ValueError, ConfigError) as error:  # no room for its log, say
            log.warning("%s can't be started for %s: %s", self._kyb_init, uid, error)
            self._again(uid, one)
            return
        self._watch(uid, one, one.child.pid)

    def _spawn(self, uid: PodUid, words: list[str], command: Command) -> subprocess.Popen[bytes]:
        if self._groups is None:
            return _spawn(words, command)
        inside = ["/bin/sh", "-c", _INSIDE, "sh", str(self._groups.group(uid)), *words]

        def spawn() -> subprocess.Popen[bytes]:
            netns.leave("pid", "mnt", "ipc")
            return _spawn(inside, command)

        return netns.as_admin(spawn)

    def _watch(self, uid: PodUid, one: _One, pid: int) -> bool:
        try:
            one.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        one.pid = pid
        asyncio.get_running_loop().add_reader(one.pidfd, self._is_over, uid, one)
        return True

    def _is_over(self, uid: PodUid, one: _One) -> None:
        asyncio.get_running_loop().remove_reader(one.pidfd)
        os.close(one.pidfd)
        one.pidfd = -1
        code = one.child.wait() if one.child is not None else None
        one.child = None
        if one.stays:
            self._again(uid, one)
            self._ended(uid, code)
        elif self._ones.get(uid) is one:
            del self._ones[uid]

    def _again(self, uid: PodUid, one: _One) -> None:
        if time.monotonic() - one.began >= _LONG:
            one.pauses = iter(_PAUSES)
        loop = asyncio.get_running_loop()
        one.timer = loop.call_later(next(one.pauses), self._start, uid, one)


def _spawn(words: list[str], command: Command) -> subprocess.Popen[bytes]:
    output = command.log.open()
    try:
        return subprocess.Popen(
            words,
            env=dict(command.env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)
