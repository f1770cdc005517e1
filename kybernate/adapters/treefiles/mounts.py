"""Which of a container's mounts are its own or its pod's: what is there goes with the pod.

A volume is there without us, for its successor too, and others may write to it meanwhile.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import beneath, smallfile
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_EMPTY_DIR = re.compile(r"/pods/[^/]+/volumes/kubernetes\.io~empty-dir/[^/]+")
_SANDBOX = re.compile(r"/[0-9a-f]{64}/(?:[^/]+/)*shm$")
"""Where a container runtime mounts the /dev/shm of a pod: below the ID of the pod's sandbox."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """The folder `root` of the file system `device`, of this `kind`, mounted at `point`. `options`
    are the mount's, `more` the file system's."""

    device: str
    root: str
    point: str
    options: tuple[str, ...] = ()
    kind: str = ""
    more: tuple[str, ...] = ()


def parse(text: str) -> list[Mount]:
    """Of the kernel's mountinfo."""
    return [_of_line(line) for line in text.splitlines()]


def _of_line(line: str) -> Mount:
    words = [_ESCAPED.sub(lambda one: chr(int(one[1], 8)), word) for word in line.split()]
    at = words.index("-", 6)
    options, more = words[5].split(","), words[-1].split(",")
    return Mount(words[2], words[3], words[4], tuple(options), words[at + 1], tuple(more))


def is_own(mount: Mount, node: Iterable[Mount]) -> bool:
    """Whether it is an emptyDir, or a tmpfs that is not the node's; `node` are the node's mounts.

    A tmpfs of the pod's is one which the node has mounted nowhere, or where kubelet mounts
    emptyDirs, or the runtime the /dev/shm of pods.
    """
    if _EMPTY_DIR.search(mount.root):
        return True
    if mount.kind != "tmpfs":
        return False
    places = [one.point for one in node if one.device == mount.device]
    return not places or any(_EMPTY_DIR.search(one) or _SANDBOX.search(one) for one in places)


def own_of(there: Mapping[str, Mount], node: Iterable[Mount]) -> dict[str, bool]:
    """Each mount point of a container's, and whether what is mounted there is its own."""
    listed = tuple(node)
    return {point: point == "/" or is_own(mount, listed) for point, mount in there.items()}


def nearest(path: str, own: Mapping[str, bool]) -> str:
    """The mount point that the absolute path lies on, or is."""
    while path and path not in own:
        path = path.rpartition("/")[0]
    return path or "/"


def of(init: int, proc: str) -> dict[str, Mount]:
    """A process's by their points; the last at each is what is seen. Raises NotFoundError."""
    try:
        found = parse(smallfile.read(f"{proc}/{init}/mountinfo"))
    except beneath.GONE as error:
        raise NotFoundError(f"There is no process {init} any more.") from error
    return {mount.point: mount for mount in found}


def of_node(proc: str) -> list[Mount]:
    """All that the node's first process has. Raises OSError."""
    return parse(smallfile.read(f"{proc}/1/mountinfo"))
