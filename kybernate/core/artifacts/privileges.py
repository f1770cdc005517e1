"""What a process tree may do, and whether a container may do as much. Pure.

A restore recreates processes with the credentials that the images say, by a program that runs
with the host's rights. So it is refused unless the container could have come to them by itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

_CAP_SETGID, _CAP_SETUID = 6, 7
_SETS = ("permitted", "effective", "inheritable", "ambient", "bounding")

_GPU_RUNTIMES = re.compile(
    # The toolkit's hook: a random name in each container, of newer ones a folder below.
    r"(/var)?/run/nvidia-ctk-hook([^/]*|/[0-9a-f-]{36})"
    r"|/proc/driver/nvidia(/.*)?"  # what the driver tells; below gpus/ by the GPU's PCI address
    r"|/dev/nvidia([0-9]+|ctl|-uvm|-uvm-tools|-modeset|-caps(/.*)?)"  # GPUs by their numbers
    r"|/dev/dri/(card|renderD)[0-9]+"  # the same GPUs for graphics, by other numbers
)
"""Mount points that NVIDIA's container toolkit makes by itself, other ones for other GPUs: by its
CDI hooks, by its legacy hook, and for device nodes where a runtime can't make these."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of the tree's, by its path in the container."""

    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Privileges:
    """All that any process of a tree has; or, of a container, what its process 1 has.

    `uids` and `gids` of every kind, supplementary groups too. Capability sets are bit masks.
    `seccomp`: 0 none, 1 strict, 2 filter: the least of the tree's. `no_new_privs`: all have it.
    """

    uids: tuple[int, ...]
    gids: tuple[int, ...]
    permitted: int = 0
    effective: int = 0
    inheritable: int = 0
    ambient: int = 0
    bounding: int = 0
    seccomp: int = 0
    no_new_privs: bool = False
    mounts: tuple[Mount, ...] = ()


def beyond(tree: Privileges, container: Privileges) -> tuple[str, ...]:
    """What of `tree` goes beyond `container`, as sentences; empty if it may be restored there."""
    return (
        *_ids(tree, container),
        *_capabilities(tree, container),
        *_confinement(tree, container),
        *_mounts(tree, container),
    )


def _reach(container: Privileges) -> int:
    """Capabilities that a process of the container can come to have: by a program that gives some
    (execve(2)), those of the bounding set; without new privileges only what it has."""
    return container.permitted if container.no_new_privs else container.bounding


def _ids(tree: Privileges, container: Privileges) -> Iterator[str]:
    for what, word, capability in (
        ("uids", "user", _CAP_SETUID),
        ("gids", "group", _CAP_SETGID),
    ):
        own = set(getattr(container, what))
        foreign = sorted(set(getattr(tree, what)) - own)
        if foreign and not _reach(container) >> capability & 1:
            yield (
                f"The artifact runs as {word} {foreign[0]}, the container only as "
                f"{', '.join(map(str, sorted(own))) or 'none'}; run it as {word} {foreign[0]}."
            )


def _capabilities(tree: Privileges, container: Privileges) -> Iterator[str]:
    for name in _SETS:
        more = getattr(tree, name) & ~(_reach(container) | getattr(container, name))
        if more:
            numbers = ", ".join(str(n) for n in range(more.bit_length()) if more >> n & 1)
            yield (
                f"The artifact has {name} capabilities that the container is not given "
                f"(numbers {numbers}); add them to the container, or save the state without them."
            )


def _confinement(tree: Privileges, container: Privileges) -> Iterator[str]:
    if tree.seccomp < container.seccomp:
        yield (
            "The artifact runs without the seccomp filter that the container has; give the "
            "container the profile that the original had."
        )
    if container.no_new_privs and not tree.no_new_privs:
        yield (
            "The container forbids new privileges and the artifact does not; set "
            "allowPrivilegeEscalation as the original had it."
        )


def is_gpu_runtimes(path: str) -> bool:
    """Whether it's the GPU runtime that mounts something there in each container, unasked. No
    restore needs it to be there: CRIU makes no mounts, and the new container has its own."""
    return _GPU_RUNTIMES.fullmatch(path) is not None


def _mounts(tree: Privileges, container: Privileges) -> Iterator[str]:
    own = {mount.path: mount for mount in container.mounts}
    for mount in tree.mounts:
        there = own.get(mount.path)
        if there is None:
            if not is_gpu_runtimes(mount.path):
                yield (
                    f"The artifact has a mount at {mount.path!r} that the container lacks; "
                    "give it the same volumes."
                )
        elif there.read_only and not mount.read_only:
            yield (f"The artifact may write to {mount.path!r}, which the container has read-only.")
