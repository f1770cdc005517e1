"""`python -m bench.saved.histories.faulty NAME`: the registry with a mistake planted in it.

What a checker is worth shows in what it finds. One is no mistake of the registry's: its clock is
set now and then.
"""

from __future__ import annotations

import os
import select
import sqlite3
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from kybernate.core.artifacts import succession
from registry import pods, service
from registry.database import Database
from registry.pods import Pods

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from kybernate.core.artifacts.succession import Asked, PodRecord


def forgets_the_token() -> None:
    """Whoever had a token once continues writing."""
    succession.check = lambda pod, node, token: succession._may_write(pod, node)  # noqa: SLF001


def gives_a_token_twice() -> None:
    """A new grant has the old token."""
    succession._newer = lambda pod, now_ms: pod.token or now_ms  # noqa: SLF001


def two_successors() -> None:
    """A later claim takes the place of the first."""
    real = succession.claim

    def claim(
        pod: PodRecord, successor: PodRecord, asked: Asked, now_ms: int
    ) -> tuple[PodRecord, PodRecord]:
        free = replace(pod, successor="", successor_node="", artifact="")
        taken, there = real(free, successor, asked, now_ms)
        return taken, taken if successor is pod else there

    succession.claim = claim


def two_writers() -> None:
    """A lease is given while another node has it."""
    real = succession.lease

    def lease(
        pod: PodRecord, node: str, until_ms: int, now_ms: int, *, runs: bool = True
    ) -> PodRecord:
        return real(replace(pod, until_ms=0), node, until_ms, now_ms, runs=runs)

    succession.lease = lease


def acknowledges_and_loses() -> None:
    """One change in ten is told, and not kept."""
    real, random = Pods._change, Random(1)  # noqa: SLF001

    def changed(self: Pods, pod: pods.Key, change: pods.Change) -> PodRecord:
        if random.random() < 0.9:
            return real(self, pod, change)
        with self._database.read() as connection:
            known = pods.fetch(connection, pod) or succession.PodRecord(*pod)
            return change(known, self._database.now(connection))

    Pods._change = changed  # type: ignore[method-assign]  # noqa: SLF001


def two_transactions() -> None:
    """It decides in one transaction and writes in another."""

    def changed(self: Pods, pod: pods.Key, change: pods.Change) -> PodRecord:
        with self._database.write() as connection:
            known = pods._locked(connection, pod)  # noqa: SLF001
            after = change(known, self._database.now(connection))
        time.sleep(0.003)
        with self._database.write() as connection:
            return pods.save(connection, known, after)

    Pods._change = changed  # type: ignore[method-assign]  # noqa: SLF001


def stale_reads() -> None:
    """What was read is told again for 50 ms."""
    real = Pods.get
    kept: dict[pods.Key, tuple[float, PodRecord]] = {}

    def get(self: Pods, pod: pods.Key) -> PodRecord:
        at, known = kept.get(pod, (0.0, None))
        if known is None or time.monotonic() > at + 0.05:
            kept[pod] = time.monotonic(), real(self, pod)
        return kept[pod][1]

    Pods.get = get  # type: ignore[method-assign]


def writes_behind() -> None:
    """It answers first, and writes to the disk some time later: only a kill tells."""
    name = "KYB_REGISTRY_DATABASE"
    kept = Path(os.environ[name].removeprefix("sqlite:///"))
    used = kept.with_suffix(".used")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{used}{suffix}").unlink(missing_ok=True)
    if kept.exists():
        used.write_bytes(kept.read_bytes())
    os.environ[name] = f"sqlite:///{used}"
    real = service.Service.start

    def start(self: service.Service) -> None:
        real(self)
        threading.Thread(target=_write_behind, args=(used, kept), daemon=True).start()

    service.Service.start = start  # type: ignore[method-assign]


def _write_behind(used: Path, kept: Path) -> None:
    part = kept.with_suffix(".part")
    while True:
        time.sleep(0.2)
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(used)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
        part.replace(kept)


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        forgets_the_token,
        gives_a_token_twice,
        two_successors,
        two_writers,
        acknowledges_and_loses,
        two_transactions,
        stale_reads,
        writes_behind,
    )
}
JUMP_MS = 5_000
"""How far off a clock that jumps is at most."""


def clock_jumps() -> None:
    """No fault of the registry's: now and then its clock is set, forwards or back."""
    random, off = Random(2), [0]

    def now(self: Database, connection: Connection) -> int:
        if random.random() < 0.05:
            off[0] = random.randint(-JUMP_MS, JUMP_MS)
        return time.time_ns() // 1_000_000 + off[0]

    Database.now = now  # type: ignore[method-assign]


def sleeps_otherwise() -> None:
    """No fault of the registry's: libfaketime, which has its clock run too fast, refuses to sleep
    until a moment of the monotonic clock, as Python does."""

    def sleep(seconds: float) -> None:
        select.select([], [], [], seconds)

    time.sleep = sleep  # type: ignore[assignment]


CLOCK_JUMPS = "clock-jumps"
CLOCK_RATES = "clock-rates"
BY_KILLS = frozenset({"writes-behind"})
"""Faults that nothing but a kill brings to light."""


def main() -> None:
    """Serve with what the first word names."""
    from registry.__main__ import main as serve  # noqa: PLC0415 - the fault is planted first

    (FAULTS | {CLOCK_JUMPS: clock_jumps, CLOCK_RATES: sleeps_otherwise})[sys.argv.pop(1)]()
    serve()


if __name__ == "__main__":
    main()
