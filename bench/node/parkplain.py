"""A server parked to disk and resumed through the agent's adapter alone, against bare CRIU.

A container of real containerd and runc runs nginx, or Redis with 1 GiB of keys. In turn its tree
is parked and resumed by the adapter (freeze, dump, end; restore, thaw), and by the commands alone
(`kyb-enter … criu dump`, `kyb-enter … criu restore`), as the dumps' recipe has them. Neither syncs.
A resume's first answer is that of a new connection, counted from the resume's begin.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench import hostmemory
from bench.report import emit, median, say
from bench.saved.barecriu import Bare
from tests.kit.node.containers import Container, Node, Wish, wait_for
from tests.kit.node.parking import Seat
from tests.kit.node.programs import ask, digest, nginx, redis, serves

if TYPE_CHECKING:
    from collections.abc import Callable

KEY_SIZE = 1000


@dataclass
class Samples:
    """Seconds of one way."""

    dump: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def first_answer(self, began: float, answers: Callable[[], bool]) -> None:
        """Waits for it."""
        while not answers():
            time.sleep(0.001)
        self.first.append(time.monotonic() - began)


def by_adapter(seat: Seat, samples: Samples, answers: Callable[[], bool], *, lazy: bool) -> None:
    """One cycle as the agent does it."""
    seat.renew()
    began = time.monotonic()
    seat.park()
    samples.dump.append(time.monotonic() - began)
    began = time.monotonic()
    seat.resume(lazy=lazy)
    samples.restore.append(time.monotonic() - began)
    # The adapter lets go of lazily restored memory on its loop, which goes on meanwhile.
    seat.run(asyncio.to_thread(samples.first_answer, began, answers))
    seat.pages_done()


class Commands:
    """The commands alone; kyb-init is told before and after, outside the time taken."""

    def __init__(self, seat: Seat) -> None:
        container, node = seat.container, seat.node
        homes = node.homes(container, seat.handle)
        folder = node.work / "bare"
        self._seat = seat
        self._bare = Bare(node.tools, container.init, lambda: container.tree, folder, homes)

    def cycle(self, samples: Samples, answers: Callable[[], bool], *, lazy: bool) -> None:
        """One dump and restore."""
        container = self._seat.container
        os.kill(container.init, signal.SIGRTMIN + 1)
        wait_for(lambda: container.comm == "kyb-hold", "kyb-init doesn't hold")
        samples.dump.append(self._bare.dump())
        wait_for(lambda: container.comm == "kyb-parked", "the tree lives on")
        procs = Path(self._seat.handle, "cgroup.procs")
        wait_for(lambda: not procs.read_text(), "the tree's memory isn't given back")
        pages = self._bare.start_pages() if lazy else None
        began = time.monotonic()
        samples.restore.append(self._bare.restore(lazy=lazy))
        os.kill(container.init, signal.SIGRTMIN + 2)
        samples.first_answer(began, answers)
        wait_for(lambda: container.comm == "kyb-run", "kyb-init doesn't continue")
        if pages is not None:
            pages.wait(60)


def measure(workload: str, samples: int, mib: int, *, lazy: bool, as_json: bool) -> None:
    """Measure parks to disk and resumes of a server, Redis with so many MiB; `samples` 0: 20 of
    nginx, 6 of Redis."""
    node = Node("kyp", say, subnet="10.98")
    seats: list[Seat] = []

    def start(*command: str, **wish: object) -> Seat:
        container: Container = node.start(Wish(command=command, **wish))  # type: ignore[arg-type]
        seats.append(Seat(node, container))
        return seats[-1]

    try:
        with hostmemory.kept(mib):
            _measure(start, workload, samples, mib, lazy=lazy, as_json=as_json)
    finally:
        for one in seats:
            one.close()
        node.close()


def _measure(
    start: Callable[..., Seat],
    workload: str,
    samples: int,
    mib: int,
    *,
    lazy: bool,
    as_json: bool,
) -> None:
    if workload == "nginx":
        seat = nginx(start)
        run(seat, samples or 20, lambda: serves(seat), "nginx", lazy=lazy, as_json=as_json)
        return
    keys = 1_000_000 * mib // 1024
    seat = redis(start, keys=keys, size=KEY_SIZE)
    say(f"Redis holds {keys} keys")

    def answers() -> bool:
        return b"$" in ask(seat, "GET", "key:42")

    run(seat, samples or 6, answers, "redis", lazy=lazy, as_json=as_json)


def run(
    seat: Seat,
    count: int,
    answers: Callable[[], bool],
    workload: str,
    *,
    lazy: bool,
    as_json: bool,
) -> None:
    """Both ways in turn, and the figures."""
    before = digest(seat) if workload == "redis" else b""
    ours, bare, commands = Samples(), Samples(), Commands(seat)
    for number in range(count + 1):
        by_adapter(seat, ours, answers, lazy=lazy)
        commands.cycle(bare, answers, lazy=lazy)
        if number == 0:  # the first of each fills caches of the kernel's and ours
            ours, bare = Samples(), Samples()
            continue
        say(
            f"{number}: adapter {ours.dump[-1]:.3f} and {ours.restore[-1]:.3f} s, "
            f"bare {bare.dump[-1]:.3f} and {bare.restore[-1]:.3f} s"
        )
    after = digest(seat) if workload == "redis" else b""
    metrics = {
        "dump_p50_s": (median(ours.dump), "s"),
        "restore_p50_s": (median(ours.restore), "s"),
        "first_answer_p50_s": (median(ours.first), "s"),
        "dump_ratio_criu": (median(ours.dump) / median(bare.dump), "x"),
        "restore_ratio_criu": (median(ours.restore) / median(bare.restore), "x"),
        "image_mib": (seat.size() / (1 << 20), "MiB"),
        "keys_equal": (float(before == after), "yes"),
    }
    baseline = {
        "name": "kyb-enter and criu alone, in turn with the above",
        "dump_p50_s": round(median(bare.dump), 4),
        "restore_p50_s": round(median(bare.restore), 4),
        "first_answer_p50_s": round(median(bare.first), 4),
    }
    emit(f"park-plain-{workload}{'-lazy' if lazy else ''}", metrics, baseline, as_json=as_json)
    if before != after:
        raise SystemExit(1)
