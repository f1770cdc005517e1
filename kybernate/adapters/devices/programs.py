"""Version 2: a program on the pod's cgroup denies its GPUs until the turn comes."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import smallfile
from kybernate.errors import NotFoundError
from kybernate.lib.netns import as_admin

from . import bpf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_NAME = "kyb_gate"
_POD = re.compile(r"(?:^|-)pod[0-9a-f]")
_DEPTH = 4
"""Folders below the mount in which a pod's cgroup is looked for: kubepods, and a class of it."""


class DevicePrograms:
    """Needs CAP_SYS_ADMIN, which one thread takes for the while. What is attached outlives the
    agent, and ends with the pod's cgroup."""

    born_shut = False

    def __init__(self, mount: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._mount, self._proc = mount, proc

    def shut(self, uid: str, devices: Iterable[tuple[int, int]]) -> str:
        """See `cdi.DeviceDoor.shut`."""
        folder = next(self._pods(uid), None)
        if folder is None:
            return f"it has no cgroup below {self._mount} yet"
        try:
            self._undone(folder)
            self._deny(folder, devices)
        except OSError as error:
            return f"the kernel takes no program that denies them: {error}"
        return ""

    def lets(self, init: int, devices: Iterable[tuple[int, int]]) -> bool:
        """See `cdi.DeviceDoor.lets`. What is attached the kernel tells only who may change it."""
        del init, devices
        return False

    def open(
        self, init: int, devices: Iterable[tuple[int, int]], is_there: Callable[[], bool]
    ) -> Callable[[], None]:
        """See `cdi.DeviceDoor.open`."""
        opened: list[Path] = []

        def shut() -> None:
            for group in opened:
                self._deny(group, devices)

        try:
            for group in self._groups_of(init, is_there):
                if self._undone(group):
                    opened.append(group)  # noqa: PERF401 - also what came before an error
        except OSError as error:
            with suppress(OSError):
                shut()
            if isinstance(error, FileNotFoundError):
                raise NotFoundError(f"The pod of process {init} is gone.") from error
            raise
        return shut

    def close(
        self, init: int, devices: Iterable[tuple[int, int]], is_there: Callable[[], bool]
    ) -> None:
        """See `cdi.DeviceDoor.close`."""
        try:
            groups = self._groups_of(init, is_there)
            if groups and not any(map(self._denies, groups)):
                self._deny(groups[-1], devices)
        except FileNotFoundError as error:
            raise NotFoundError(f"The pod of process {init} is gone.") from error

    def _groups_of(self, init: int, is_there: Callable[[], bool]) -> list[Path]:
        """The pod's of a container's process, the innermost first."""
        try:
            lines = smallfile.read(f"{self._proc}/{init}/cgroup").splitlines()
        except (FileNotFoundError, ProcessLookupError) as error:
            raise NotFoundError(f"There is no process {init} any more.") from error
        path = next((line[3:] for line in lines if line.startswith("0::")), "/")
        if not is_there():  # its number, and so the group, may be another's
            raise NotFoundError(f"There is no process {init} any more.")
        # Some runtimes put another group between a pod's and its container's. That of all pods is
        # none of them.
        above = Path(path.lstrip("/")).parents
        return [self._mount / group for group in above if _POD.search(group.name)]

    def _denies(self, folder: Path) -> bool:
        def act() -> bool:
            with _opened(folder) as group:
                return bpf.attached(group, _NAME)

        return as_admin(act)

    def _deny(self, folder: Path, devices: Iterable[tuple[int, int]]) -> None:
        program = bpf.denies(devices)

        def act() -> None:
            with _opened(folder) as group:
                bpf.attach(group, program, _NAME)

        as_admin(act)

    def _undone(self, folder: Path) -> int:
        """How many programs of ours were there."""

        def act() -> int:
            with _opened(folder) as group:
                return bpf.detach(group, _NAME)

        return as_admin(act)

    def _pods(self, uid: str) -> Iterator[Path]:
        names = {f"pod{uid}", f"pod{uid.replace('-', '_')}.slice"}
        for path, folders, _ in os.walk(self._mount):
            for name in folders:
                if name in names or any(name.endswith(f"-{one}") for one in names):
                    yield Path(path) / name
            if len(Path(path).relative_to(self._mount).parts) >= _DEPTH - 1:
                folders.clear()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    group = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield group
    finally:
        os.close(group)
