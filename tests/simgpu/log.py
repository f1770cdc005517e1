"""The driver's own log: who held how many bytes of which GPU when.

Lines are written under the node's memory lock, a release before its bytes can be taken by somebody
else and an acquisition after they were taken. So the order of the lines is the order of events,
and two holders that the lines show together did hold memory together.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kybernate.local.simgpu import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


class Event(StrEnum):
    """What a line tells. RECLAIM is a release that another process wrote for one that died."""

    OPEN = "open"
    ACQUIRE = "acquire"
    RELEASE = "release"
    CLOSE = "close"
    RECLAIM = "reclaim"


@dataclass(frozen=True, slots=True)
class Record:
    """One line. `bytes` are paper bytes that changed hands, `held` what the process holds of this
    GPU afterwards. `pod` is the pod's UID, empty outside pods; `pid` counts in the process's own
    PID namespace, which `pidns` names. `at_ns` is CLOCK_MONOTONIC."""

    at_ns: int
    event: Event
    gpu: str
    pod: str
    pid: int
    pidns: int
    bytes: int
    held: int
    why: str

    @property
    def holder(self) -> str:
        """Who it was: the pod, or for a process outside pods the process."""
        return self.pod or f"process {self.pid} of namespace {self.pidns}"


@dataclass(frozen=True, slots=True)
class Violation:
    """More than one holder on a GPU: who, with how many bytes each, from when on."""

    gpu: str
    at_ns: int
    holders: Mapping[str, int]


def read_log(root: Path) -> list[Record]:
    """All lines so far, in order. A line that is being written is left for the next read."""
    text = (root / layout.LOG_FILE).read_text()
    complete = text[: text.rfind("\n") + 1]
    return [_record(line) for line in complete.splitlines()]


def violations(records: Iterable[Record], *, contexts: bool = False) -> list[Violation]:
    """Every moment at which two holders came to have memory of one GPU at once; empty is good.

    With `contexts` an open context counts as holding even without memory, for models that
    allocate none.
    """
    found: list[Violation] = []
    ledger = _Ledger()
    for record in records:
        ledger.apply(record)
        holders = ledger.holders(record.gpu, contexts=contexts)
        if len(holders) > 1 and record.event in {Event.ACQUIRE, Event.OPEN}:
            found.append(Violation(record.gpu, record.at_ns, holders))
    return found


def holdings(records: Iterable[Record], at_ns: int | None = None) -> dict[str, dict[str, int]]:
    """Bytes per GPU and holder, at a time (CLOCK_MONOTONIC) or after the last record."""
    ledger = _Ledger()
    gpus: set[str] = set()
    for record in records:
        if at_ns is not None and record.at_ns > at_ns:
            break
        ledger.apply(record)
        gpus.add(record.gpu)
    return {gpu: ledger.holders(gpu) for gpu in sorted(gpus)}


class _Ledger:
    """Who holds what after the records applied so far."""

    def __init__(self) -> None:
        self._held: dict[str, dict[tuple[str, int, int], int]] = defaultdict(dict)

    def apply(self, record: Record) -> None:
        processes = self._held[record.gpu]
        process = (record.holder, record.pid, record.pidns)
        if record.event in {Event.CLOSE, Event.RECLAIM}:
            processes.pop(process, None)
        else:
            processes[process] = record.held

    def holders(self, gpu: str, *, contexts: bool = False) -> dict[str, int]:
        """Bytes by holder, over all its processes."""
        total: dict[str, int] = defaultdict(int)
        for (holder, _, _), held in self._held[gpu].items():
            if held or contexts:
                total[holder] += held
        return dict(total)


def _record(line: str) -> Record:
    fields = json.loads(line)
    return Record(
        at_ns=fields["t"],
        event=Event(fields["event"]),
        gpu=fields["gpu"],
        pod=fields["pod"],
        pid=fields["pid"],
        pidns=fields["pidns"],
        bytes=fields["bytes"],
        held=fields["held"],
        why=fields["why"],
    )
