"""What processes may do, and their numbers, as /proc shows them: for an artifact's manifest."""

from __future__ import annotations

import operator
import os
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import smallfile
from kybernate.core.artifacts.privileges import Mount, Privileges
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SETS = {
    "permitted": "CapPrm",
    "effective": "CapEff",
    "inheritable": "CapInh",
    "ambient": "CapAmb",
    "bounding": "CapBnd",
}


def privileges_of(pids: Sequence[int], proc: str = "/proc") -> Privileges:
    """All that any of these processes has; mounts as the first sees them.

    Raises NotFoundError if one is gone.
    """
    states = [_status(pid, proc) for pid in pids]
    sets = {name: _union(states, key) for name, key in _SETS.items()}
    return Privileges(
        uids=_ids(states, "Uid"),
        gids=_ids(states, "Gid", "Groups"),
        **sets,
        seccomp=min((int(state.get("Seccomp", "0")) for state in states), default=0),
        no_new_privs=all(state.get("NoNewPrivs") == "1" for state in states),
        mounts=_mounts(pids[0], proc) if pids else (),
    )


def highest_pid(pids: Iterable[int], proc: str = "/proc") -> int:
    """The highest number of these processes and their threads in their own PID namespace.

    Raises NotFoundError if one is gone.
    """
    return max((_highest(pid, proc) for pid in pids), default=0)


def bytes_of(pids: Iterable[int], proc: str = "/proc") -> int:
    """About what a dump of these processes takes: the memory that no file on a disk has. What
    several of them share counts for each; one that is gone has none."""
    kib = 0
    for pid in pids:
        with suppress(NotFoundError):
            state = _status(pid, proc)
            kinds = (state.get(name, "0 kB") for name in ("RssAnon", "RssShmem"))
            kib += sum(int(kind.split()[0]) for kind in kinds)
    return kib << 10


def number_inside(pid: int, proc: str = "/proc") -> int:
    """The process's number in its own PID namespace. Raises NotFoundError if it is gone."""
    return int(_status(pid, proc)["NSpid"].split()[-1])


def kyb_init_of(init: int, folder: Path, proc: str = "/proc") -> str:
    """The SHA-256 of the build that this process 1 runs, by its file's name in the folder of
    builds; empty if it is none of them."""
    with suppress(OSError):
        mine = Path(f"{proc}/{init}/exe").stat()
        for path in folder.glob("kyb-init-*"):
            if os.path.samestat(path.stat(), mine):
                return path.name.removeprefix("kyb-init-")
    return ""


def _highest(pid: int, proc: str) -> int:
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no process {pid} any more.") from error
    numbers = (_status(pid, proc, f"task/{thread}/status")["NSpid"] for thread in threads)
    return max(int(number.split()[-1]) for number in numbers)


def _status(pid: int, proc: str, name: str = "status") -> Mapping[str, str]:
    try:
        text = smallfile.read(f"{proc}/{pid}/{name}")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotFoundError(f"There is no process {pid} any more.") from error
    lines = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in lines}


def _union(states: Iterable[Mapping[str, str]], key: str) -> int:
    return reduce(operator.or_, (int(state.get(key, "0"), 16) for state in states), 0)


def _ids(states: Iterable[Mapping[str, str]], *keys: str) -> tuple[int, ...]:
    found = {int(word) for state in states for key in keys for word in state.get(key, "").split()}
    return tuple(sorted(found))


def _mounts(pid: int, proc: str) -> tuple[Mount, ...]:
    try:
        lines = smallfile.read(f"{proc}/{pid}/mountinfo").splitlines()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotFoundError(f"There is no process {pid} any more.") from error
    words = (line.split() for line in lines)
    return tuple(Mount(one[4], "ro" in one[5].split(",")) for one in words)
