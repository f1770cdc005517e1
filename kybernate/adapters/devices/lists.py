"""Version 1: each cgroup has a list of what may be opened, which the agent adds to."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import smallfile
from kybernate.errors import NotFoundError
from kybernate.lib.netns import as_admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_OPEN = "rw"
_CONTROLLER = "devices"
_ALLOW, _DENY = "devices.allow", "devices.deny"


class DeviceLists:
    """`mount` is where the node mounts its cgroups; needs
    CAP_SYS_ADMIN, which one thread takes for the while."""

    def __init__(self, mount: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._base, self._proc = mount / _CONTROLLER, proc

    @property
    def born_shut(self) -> bool:
        """See `cdi.DeviceDoor.born_shut`."""
        return (self._base / _ALLOW).exists()

    def shut(self, uid: str, devices: Iterable[tuple[int, int]]) -> str:
        """Nothing is left to do where its containers are born so."""
        return "" if self.born_shut else f"this node has no device cgroups at {self._base}"

    def open(
        self, init: int, devices: Iterable[tuple[int, int]], is_there: Callable[[], bool]
    ) -> Callable[[], None]:
        """See `cdi.DeviceDoor.open`."""
        if not self.born_shut:
            return _nothing
        group = self._group_of(init, is_there)
        try:
            if not (missing := _missing(group, devices)):
                return _nothing
            undo = partial(as_admin, lambda: _add(group / _DENY, missing))
            try:
                as_admin(lambda: _add(group / _ALLOW, missing))
            except OSError:
                with suppress(OSError):
                    undo()
                raise
        except FileNotFoundError as error:
            raise NotFoundError(f"The container of process {init} is gone.") from error
        return undo

    def close(
        self, init: int, devices: Iterable[tuple[int, int]], is_there: Callable[[], bool]
    ) -> None:
        """See `cdi.DeviceDoor.close`."""
        if not self.born_shut:
            return
        group, wanted = self._group_of(init, is_there), list(devices)
        try:
            if may := _named(wanted) - _missing(group, wanted):
                as_admin(lambda: _add(group / _DENY, may))
        except FileNotFoundError as error:
            raise NotFoundError(f"The container of process {init} is gone.") from error

    def lets(self, init: int, devices: Iterable[tuple[int, int]]) -> bool:
        """See `cdi.DeviceDoor.lets`."""
        try:
            return not self.born_shut or not _missing(self._group(init), devices)
        except FileNotFoundError as error:
            raise NotFoundError(f"The container of process {init} is gone.") from error

    def _group_of(self, init: int, is_there: Callable[[], bool]) -> Path:
        group = self._group(init)
        if not is_there():  # its number, and so the group, may be another's
            raise NotFoundError(f"There is no process {init} any more.")
        return group

    def _group(self, init: int) -> Path:
        try:
            lines = smallfile.read(f"{self._proc}/{init}/cgroup").splitlines()
        except (FileNotFoundError, ProcessLookupError) as error:
            raise NotFoundError(f"There is no process {init} any more.") from error
        for line in lines:
            _, names, path = line.split(":", 2)
            if _CONTROLLER in names.split(","):
                return self._base / path.lstrip("/")
        raise NotFoundError(f"Process {init} is in no cgroup of devices.")


def _missing(group: Path, devices: Iterable[tuple[int, int]]) -> set[str]:
    """Those that a cgroup's list does not let be opened. Raises FileNotFoundError."""
    wanted = _named(devices)
    return wanted - _allowed(wanted, smallfile.read(f"{group}/devices.list"))


def _named(devices: Iterable[tuple[int, int]]) -> set[str]:
    return {f"c {major}:{minor}" for major, minor in devices}


def _allowed(wanted: Iterable[str], rules: str) -> set[str]:
    """Those that may be read and written by a list's rules: each names one device, all of a major
    number, or all."""
    parts = (rule.rpartition(" ") for rule in rules.splitlines())
    named = {device for device, _, access in parts if set(_OPEN) <= set(access)}
    whole = {"a *:*", "c *:*"} & named
    return {one for one in wanted if whole or {one, f"{one.partition(':')[0]}:*"} & named}


def _nothing() -> None:
    """Shuts nothing: nothing was opened."""


def _add(file: Path, devices: Iterable[str]) -> None:
    for device in devices:
        with open(os.open(file, os.O_WRONLY), "wb", buffering=0) as allowed:
            allowed.write(f"{device} {_OPEN}".encode())
