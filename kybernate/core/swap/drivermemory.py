"""Which memory of a parked process the CUDA driver keeps what was on its GPUs in. Pure.

Nobody tells where that is; but the driver gets it in the checkpoint: it is what can be written to
afterwards and could not before. Compared are addresses and not lines of /proc/PID/maps, since the
kernel makes one mapping of neighbours.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Span = tuple[int, int]
"""Addresses from the first up to the second, which is no part of it."""

_WHOLE = (b"/memfd:", b"/dev/zero")
"""What is shared, and no file of a disk: a restore has always brought all of it in at once."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What came to a process: `private` memory, sorted and disjoint, and bytes of `shared`."""

    private: tuple[Span, ...] = ()
    shared: int = 0

    def text(self) -> str:
        """What `read` reads."""
        return json.dumps({"private": self.private, "shared": self.shared})


def read(text: str) -> Grown | None:
    """What `Grown.text` wrote; None for anything else."""
    try:
        found = json.loads(text)
        private = tuple((int(start), int(end)) for start, end in found["private"])
        return Grown(_joined(private), int(found["shared"]))
    except (ValueError, KeyError, TypeError):
        return None


def grown(before: bytes, after: bytes) -> Grown:
    """What is there by the second text of /proc/PID/maps and wasn't by the first."""
    old, new = set(before.splitlines()), set(after.splitlines())
    come, gone = new - old, old - new
    private = without(_spans(come, b"p"), _spans(gone, b"p"))
    shared = without(_spans(come, b"s"), _spans(gone, b"s"))
    return Grown(private, sum(end - start for start, end in shared))


def without(spans: Sequence[Span], others: Sequence[Span]) -> tuple[Span, ...]:
    """What is in the first and not in the second; both sorted and disjoint."""
    return tuple(
        (start, end)
        for span in spans
        for start, end, inside in split(span[0], span[1], others)
        if not inside
    )


def split(start: int, end: int, spans: Sequence[Span]) -> Iterator[tuple[int, int, bool]]:
    """A range cut where the spans begin and end, which are sorted and disjoint, in order; whether
    each part lies in one of them."""
    at, number = start, max(0, bisect_right(spans, (start, start)) - 1)
    while at < end:
        first, last = spans[number] if number < len(spans) else (end, end)
        number += 1
        if at < first:
            yield at, min(first, end), False
            at = min(first, end)
        if at < min(last, end):
            yield at, min(last, end), True
            at = min(last, end)


def _spans(lines: Iterable[bytes], how: bytes) -> tuple[Span, ...]:
    """What these lines say can be read and written, private or shared; of files nothing."""
    found = []
    for line in lines:
        addresses, rights, _, _, inode, *path = line.split(maxsplit=5)
        if not rights.startswith(b"rw") or rights[3:] != how:
            continue
        if inode == b"0" if how == b"p" else bool(path) and path[0].startswith(_WHOLE):
            first, _, last = addresses.partition(b"-")
            found.append((int(first, 16), int(last, 16)))
    return _joined(found)


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sorted, and one where they touch."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif start < end:
            joined.append((start, end))
    return tuple(joined)
