"""Which processes are a container's kyb-init, and which only say so.

A container is a stranger's: its processes may make namespaces of their own and call themselves
what they like there. So process 1 is taken for the gate only if the kernel says that it is one, and
is held from then on: a PID alone names nothing for long.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import smallfile
from kybernate.errors import NotFoundError, RefusedError
from kybernate.ports import HeldInit

if TYPE_CHECKING:
    from collections.abc import Iterator

_GET_USER, _GET_PARENT = 0xB701, 0xB702
"""Of a namespace: the user namespace that owns it, and the one it is below (linux/nsfs.h)."""
_PROGRAMS = "kyb-init*"
_GONE = (FileNotFoundError, ProcessLookupError)


class KernelInits:
    """Implements `kybernate.ports.Inits`: each is held from when it was first seen to be one.

    `programs` is the folder with every kyb-init that was ever installed here; containers run the
    very files. Needs CAP_SYS_PTRACE. Calls come from one thread.
    """

    def __init__(self, programs: Path, proc: Path = Path("/proc")) -> None:
        self._programs, self._proc = programs, proc
        self._held: dict[int, HeldInit] = {}

    def admit(self, pidfd: int) -> None:
        """See `ports.Inits.admit`."""
        pid = self._number(pidfd)
        program = self._check(pid)
        # While it is there nobody else has its number: what was asked by number is true of it.
        if has_ended(pidfd):
            raise NotFoundError(f"There is no process {pid} any more.")
        self._forget_ended()
        if pid not in self._held:
            self._held[pid] = HeldInit(os.dup(pidfd), program)

    def there(self, pid: int) -> bool:
        """See `ports.Inits.there`."""
        held = self._held.get(pid)
        return held is not None and not has_ended(held.pidfd)

    def hold(self, pid: int) -> HeldInit:
        """See `ports.Inits.hold`."""
        if not self.there(pid):
            with _opened(pid) as pidfd:
                self.admit(pidfd)
        held = self._held[pid]
        return HeldInit(os.dup(held.pidfd), held.program)

    def _forget_ended(self) -> None:
        for pid in [pid for pid, held in self._held.items() if has_ended(held.pidfd)]:
            os.close(self._held.pop(pid).pidfd)

    def _number(self, pidfd: int) -> int:
        """Its PID, if that is 1 in the PID namespace right below ours: deeper ones are for all."""
        told = _fields(smallfile.read(f"{self._proc}/self/fdinfo/{pidfd}"))
        numbers = [int(word) for word in told.get("NSpid", "").split()]
        if not numbers or numbers[0] <= 0:
            raise NotFoundError("The process has ended.")
        if len(numbers) != 2 or numbers[1] != 1:
            raise RefusedError(
                f"Process {numbers[0]} is not number 1 of a container's PID namespace: "
                f"its numbers, from the node inwards, are {', '.join(map(str, numbers))}."
            )
        return numbers[0]

    def _check(self, pid: int) -> Path:
        try:
            program = self._program_of(pid)
            if program is None:
                raise RefusedError(f"Process {pid} doesn't run the kyb-init of this node.")
            if _fields(self._text(pid, "status")).get("TracerPid") != "0":
                raise RefusedError(f"Process {pid} is in a debugger's hands.")
            for name in ("mnt", "pid"):
                if self._about(pid, name, _GET_USER) != self._own("user"):
                    raise RefusedError(
                        f"Process {pid} is in a {name} namespace of another user namespace than "
                        "the node's; its pod can't have hostUsers: false."
                    )
            if self._about(pid, "pid", _GET_PARENT) != self._own("pid"):
                raise RefusedError(f"Process {pid} is in a PID namespace that isn't right here.")
        except _GONE as error:
            raise NotFoundError(f"There is no process {pid} any more.") from error
        return program

    def _program_of(self, pid: int) -> Path | None:
        runs = os.stat(f"{self._proc}/{pid}/exe")
        for file in self._programs.glob(_PROGRAMS):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(file.stat(), runs):
                    return file
        return None

    def _about(self, pid: int, name: str, question: int) -> tuple[int, int]:
        one = os.open(f"{self._proc}/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            answer = fcntl.ioctl(one, question)
        except PermissionError:
            return 0, 0  # it lies outside of all that we may see
        finally:
            os.close(one)
        try:
            return _names(os.fstat(answer))
        finally:
            os.close(answer)

    def _own(self, name: str) -> tuple[int, int]:
        return _names(os.stat(f"{self._proc}/self/ns/{name}"))

    def _text(self, pid: int, name: str) -> str:
        return smallfile.read(f"{self._proc}/{pid}/{name}")


def has_ended(pidfd: int) -> bool:
    """Whether the process of this descriptor has."""
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(0))


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int]:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise NotFoundError(f"There is no process {pid} any more.") from error
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _names(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
