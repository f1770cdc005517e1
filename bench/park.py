"""A server parked to disk and resumed through the agent's adapter, against bare CRIU.

A container of real containerd and runc runs nginx, or Redis with 1 GiB of keys. In turn its tree
is parked and resumed by the adapter (freeze, dump, end; restore, thaw), and by the commands alone
(`kyb-enter … criu dump`, `kyb-enter … criu restore`), as the dumps' recipe has them. Neither syncs.
A resume's first answer is that of a new connection, counted from the resume's begin.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.report import emit, median, say
from tests.kit.containers import Container, Node, Wish, wait_for
from tests.kit.parking import Seat
from tests.kit.programs import ask, digest, nginx, redis, serves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEYS = 1_000_000
KEY_SIZE = 1000
FIRST = 80
NAMES = {"images": 90, "work": 91, "cache": 96}
CRIU = ("--no-default-config", "--manage-cgroups=ignore", "--tcp-established", "-v1")


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
    samples.first_answer(began, answers)
    seat.pages_done()


class Bare:
    """The commands alone; kyb-init is told before and after, outside the time taken."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._folder = seat.node.work / "bare"
        self._work = seat.node.work / "bare-work"
        for folder in (self._folder, self._work):
            folder.mkdir()

    def cycle(self, samples: Samples, answers: Callable[[], bool], *, lazy: bool) -> None:
        """One dump and restore."""
        container = self._seat.container
        for file in self._folder.iterdir():
            file.unlink()
        tree = container.number_inside(container.tree)
        pipes = [os.readlink(f"/proc/{container.init}/fd/{number}") for number in range(3)]
        os.kill(container.init, signal.SIGRTMIN + 1)
        wait_for(lambda: container.comm == "kyb-hold", "kyb-init doesn't hold")
        dump = ("dump", "-t", str(tree), "--network-lock", "skip", *CRIU)
        samples.dump.append(self._run(dump))
        wait_for(lambda: container.comm == "kyb-parked", "the tree lives on")
        procs = Path(self._seat.handle, "cgroup.procs")
        wait_for(lambda: not procs.read_text(), "the tree's memory isn't given back")
        pages = self._start_pages() if lazy else None
        began = time.monotonic()
        with self._inherited(pipes) as (keep, options):
            argv = ("restore", "-d", *CRIU, *options, *(["--lazy-pages"] if lazy else []))
            samples.restore.append(self._run(argv, keep, self._cgroups()))
        os.kill(container.init, signal.SIGRTMIN + 2)
        samples.first_answer(began, answers)
        wait_for(lambda: container.comm == "kyb-run", "kyb-init doesn't go on")
        if pages is not None:
            pages.wait(60)

    def _start_pages(self) -> subprocess.Popen[bytes]:
        socket = self._work / "lazy-pages.socket"
        socket.unlink(missing_ok=True)
        with self._command(("lazy-pages", *CRIU[:1])) as (argv, fds):
            process = subprocess.Popen(argv, pass_fds=fds, env={})
        wait_for(socket.exists, "lazy-pages doesn't start")
        return process

    def _run(
        self,
        argv: tuple[str, ...],
        keep: dict[int, int] | None = None,
        cgroups: tuple[Path, ...] = (),
    ) -> float:
        with self._command(argv, keep, cgroups) as (command, fds):
            began = time.monotonic()
            subprocess.run(command, pass_fds=fds, env={}, check=True)
            return time.monotonic() - began

    @contextlib.contextmanager
    def _command(
        self,
        argv: tuple[str, ...],
        keep: dict[int, int] | None = None,
        cgroups: tuple[Path, ...] = (),
    ) -> Iterator[tuple[list[str], list[int]]]:
        tools = self._seat.node.tools
        with contextlib.ExitStack() as stack:

            def opened(path: Path, flags: int) -> int:
                descriptor = os.open(path, flags)
                stack.callback(os.close, descriptor)
                return descriptor

            target = os.pidfd_open(self._seat.container.init)
            stack.callback(os.close, target)
            program = opened(tools.criu, os.O_PATH)
            folders = {"images": self._folder, "work": self._work, "cache": tools.cache}
            kept = {NAMES[name]: opened(path, os.O_RDONLY) for name, path in folders.items()}
            kept |= keep or {}
            joined = [opened(path / "cgroup.procs", os.O_WRONLY) for path in cgroups]
            command = [str(tools.enter), "--target", str(target), "--run", str(program)]
            for number, descriptor in kept.items():
                command += ["--keep", f"{descriptor}={number}"]
            for descriptor in joined:
                command += ["--cgroup", str(descriptor)]
            command += ["--", "criu", *argv, "-D", f"/proc/self/fd/{NAMES['images']}"]
            command += ["-W", f"/proc/self/fd/{NAMES['work']}", "-o", f"{argv[0]}.log"]
            yield command, [target, program, *kept.values(), *joined]

    @contextlib.contextmanager
    def _inherited(self, pipes: list[str]) -> Iterator[tuple[dict[int, int], list[str]]]:
        keep: dict[int, int] = {}
        options: list[str] = []
        for number, link in enumerate(pipes):
            if link.startswith("pipe:") and not any(link in option for option in options):
                path = f"/proc/{self._seat.container.init}/fd/{number}"
                keep[FIRST + number] = os.open(path, os.O_WRONLY if number else os.O_RDONLY)
                options += ["--inherit-fd", f"fd[{FIRST + number}]:{link}"]
        try:
            yield keep, options
        finally:
            for descriptor in keep.values():
                os.close(descriptor)

    def _cgroups(self) -> tuple[Path, ...]:
        return tuple(self._seat.node.homes(self._seat.container, self._seat.handle))


@click.command()
@click.option("--workload", type=click.Choice(["nginx", "redis"]), default="nginx")
@click.option("--samples", default=0, help="Cycles of each way; default: 20 of nginx, 6 of Redis.")
@click.option("--lazy", is_flag=True, help="Bring memory in after the first instruction.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(workload: str, samples: int, lazy: bool, as_json: bool) -> None:
    """Measure parks to disk and resumes of a server."""
    node = Node("kyp", say, subnet="10.98.0")
    seats: list[Seat] = []

    def start(*command: str, **wish: object) -> Seat:
        container: Container = node.start(Wish(command=command, **wish))  # type: ignore[arg-type]
        seats.append(Seat(node, container))
        return seats[-1]

    try:
        if workload == "nginx":
            seat = nginx(start)
            run(seat, samples or 20, lambda: serves(seat), "nginx", lazy=lazy, as_json=as_json)
        else:
            seat = redis(start, keys=KEYS, size=KEY_SIZE)
            say(f"Redis holds {KEYS} keys")

            def answers() -> bool:
                return b"$" in ask(seat, "GET", "key:42")

            run(seat, samples or 6, answers, "redis", lazy=lazy, as_json=as_json)
    finally:
        for one in seats:
            one.close()
        node.close()


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
    ours, bare, commands = Samples(), Samples(), Bare(seat)
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
    emit(f"park-{workload}{'-lazy' if lazy else ''}", metrics, baseline, as_json=as_json)
    if before != after:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
