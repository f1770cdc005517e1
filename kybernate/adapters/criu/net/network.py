"""Work in a container's network or IPC namespace, from a thread that enters it and ends there."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kybernate.adapters.kernel.nodespace import enter
from kybernate.lib.netns import as_admin

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def inside(pid: int, call: Callable[[], T], kind: str = "net", *, anywhere: bool = False) -> T:
    """What `call` returns in the process's namespace of this kind; blocks. Raises what `enter` and
    `call` raise; for `anywhere` see there."""

    def run() -> T:
        enter(pid, kind, anywhere=anywhere)
        return call()

    return as_admin(run)
