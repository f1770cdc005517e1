"""The container's limits while it is recreated: no CPU quota, and room for CRIU beside the tree.

What was changed is written down first, so that an agent that was restarted puts it back. What the
kubelet has set meanwhile, for a pod that was resized, stays.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.files import sums
from kybernate.adapters.kernel import smallfile

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = "limits.json"
_LOST = "the limits of its container stay raised; restart the container, and they are its own"
ROOM = 256 << 20
"""Bytes of memory for CRIU beside the tree: its own, and pages of the images that it reads."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page below 2^63."""
_VERSION_1 = (("cpu", "cpu.cfs_quota_us"), ("memory", "memory.limit_in_bytes"))
_VERSION_2 = (("", "cpu.max"), ("", "memory.max"), ("", "memory.high"))


def groups_of(init: int, mount: Path, proc: Path) -> dict[str, Path]:
    """The container's cgroups by controller ("" is version 2), of the hierarchies mounted here."""
    found = {}
    version2 = (mount / "cgroup.controllers").exists()
    for line in smallfile.read(f"{proc}/{init}/cgroup").splitlines():
        names, path = line.split(":", 2)[1:]
        hierarchy = "." if version2 else names.removeprefix("name=") or "unified"
        group = mount / hierarchy / path.lstrip("/")
        if group.is_dir():
            found.update(dict.fromkeys(names.split(","), group))
    return found


def cached(groups: dict[str, Path]) -> int:
    """Bytes of file pages that count as the container's; 0 if its cgroup doesn't say."""
    group = groups.get("memory") or groups.get("")
    with suppress(OSError):
        for line in smallfile.read(f"{group}/memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name in ("cache", "file"):
                return int(value)
    return 0


def lift(groups: dict[str, Path], work: Path) -> None:
    """Lifts them until `put_back`; what was there before is written down in `work` first."""
    put_back(work)
    changes = list(_changes(groups))
    if changes:
        _write_down(work / FILE, {str(path): (now, new) for path, now, new in changes})
    for path, _, new in changes:
        _set(path, new)


def put_back(work: Path) -> None:
    """What was lifted, also by an agent that is no more; nothing if there is none.

    Blocks while the kernel gives memory back.

    A limit that doesn't fit now is tried again the next time.
    """
    try:
        before = sums.read(work / FILE, _LOST)
    except FileNotFoundError:
        return
    before.pop(sums.MEMBER, None)
    left = {
        path: (value, ours)
        for path, (value, ours) in reversed(before.items())
        if _is_ours(Path(path), ours) and not _set(Path(path), value)
    }
    if left:
        _write_down(work / FILE, dict(reversed(left.items())))
    else:
        (work / FILE).unlink(missing_ok=True)


def _changes(groups: dict[str, Path]) -> Iterator[tuple[Path, str, str]]:
    """(file, its content, its content without the limit): the pod's first, as no child's limit may
    exceed its parent's."""
    for above in (True, False):
        for controller, name in _VERSION_1 if "memory" in groups else _VERSION_2:
            if controller in groups:
                group = groups[controller]
                path = (group.parent if above else group) / name
                with suppress(FileNotFoundError):
                    now = smallfile.read(str(path)).strip()
                    new = _without(name, now)
                    if new != now:
                        yield path, now, new


def _without(name: str, now: str) -> str:
    if name == "cpu.cfs_quota_us":
        return "-1"
    if name == "cpu.max":
        return f"max {now.split()[1]}"
    if now == "max" or int(now) >= _UNLIMITED:
        return now
    return str(int(now) + ROOM)


def _is_ours(path: Path, value: str) -> bool:
    """Whether it is still what we wrote; the kernel cuts bytes down to whole pages."""
    with suppress(OSError):
        now = smallfile.read(str(path)).strip()
        return now == value or (
            now.isdigit() and value.isdigit() and int(now) // _PAGE == int(value) // _PAGE
        )
    return False


def _write_down(path: Path, values: dict[str, tuple[str, str]]) -> None:
    part = path.with_suffix(".part")
    # Releases before take the sum for a limit of a cgroup that is gone.
    part.write_text(json.dumps(sums.summed(values)))
    part.replace(path)


def _set(path: Path, value: str) -> bool:
    """False if the kernel refuses it for now: a memory limit below what is in use."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    except OSError:
        return True  # the cgroup is gone
    try:
        os.write(descriptor, value.encode())
    except OSError as error:
        return error.errno != errno.EBUSY
    finally:
        os.close(descriptor)
    return True
