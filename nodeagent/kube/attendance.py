"""Whether the kubelet can admit a seat now: a device plugin attends, and is listed.

A pod that reaches a kubelet whose plugin is away is failed for good ("no healthy devices"), so
the extender must hear of it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Attendance:
    """The plugins that hold a stream; during a rolling update there are two for a while."""

    def __init__(self) -> None:
        self._unlisted: dict[object, tuple[str, ...]] = {}
        self._changed: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        """`call` is told of each change; on the loop, quick."""
        self._changed.append(call)

    def set(self, plugin: object, unlisted: Sequence[str]) -> None:
        """What a plugin says: the resources that the kubelet doesn't list."""
        self._unlisted[plugin] = tuple(unlisted)
        self._tell()

    def left(self, plugin: object) -> None:
        """A plugin's stream has ended."""
        if self._unlisted.pop(plugin, None) is not None:
            self._tell()

    def missing(self) -> str | None:
        """Why the kubelet would fail a new seat, as a sentence; None if it wouldn't."""
        if not self._unlisted:
            return "its device plugin is away"
        fewest = min(self._unlisted.values(), key=len)
        return f"its kubelet doesn't list {', '.join(fewest)}" if fewest else None

    def _tell(self) -> None:
        for call in self._changed:
            call()
