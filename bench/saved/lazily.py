"""A process's first answer after a restore from a disk, whose GPUs had more or less of its memory.

A container of real containerd and runc runs a process of 1 GiB. So much of that is what a driver
would have put there at the park; the process reads all of it before it answers, as a driver does.
In turn it is restored whole; lazily, as the pages come; and lazily with the GPUs' pages first.
CRIU's server brings pages in by address, and what it reads has the highest, or with --lowest the
lowest. An answer is counted from the restore's begin; images lie in the page cache.
"""

from __future__ import annotations

import asyncio
import time

import click

from bench import hostmemory
from bench.report import Metrics, emit, median, say
from tests.kit.node.containers import Container, Node, Wish
from tests.kit.node.parking import Seat
from tests.kit.node.taken import Sizes, Taking

SHARES = (1 / 8, 1 / 2, 15 / 16)
"""Of the process's memory, what was on its GPUs."""

WAYS = {"whole": (False, True), "lazy": (True, False), "first": (True, True)}
"""Lazily, and whether it is known what the driver took."""


def cycle(taking: Taking, *, lazy: bool, known: bool) -> tuple[float, float]:
    """Seconds to the first answer, and until all memory is in."""
    seat = taking.seat
    taking.note_again(known=known)
    seat.park()
    began = time.monotonic()

    async def resumed() -> tuple[float, float]:
        await seat.resume_inside(lazy=lazy)
        await asyncio.to_thread(taking.ask, "read", "done")
        answered = time.monotonic() - began
        await seat.criu.pages_done(seat.container.init, 60.0)
        return answered, time.monotonic() - began

    return seat.run(resumed())


def share(node: Node, seats: list[Seat], sizes: Sizes, samples: int) -> Metrics:
    """The figures of a process of which the GPUs had so much."""

    def start(*command: str, **wish: object) -> Seat:
        container: Container = node.start(Wish(command=command, **wish))  # type: ignore[arg-type]
        seats.append(Seat(node, container))
        return seats[-1]

    size = sizes.taken
    app, notes = node.work / f"{size}" / "app", node.work / f"{size}" / "notes"
    for folder in (app, notes):
        folder.mkdir(parents=True)
    taking = Taking(start, app, notes, sizes)
    seen: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(samples + 1):
        for way, (lazy, known) in WAYS.items():
            found = cycle(taking, lazy=lazy, known=known)
            say(f"{size} MiB, {way}: {found[0]:.3f} s, all in after {found[1]:.3f} s")
            seen[way] += [found] if number else []  # the first fills caches
    right = taking.is_right()
    node.discard(taking.seat.container)
    answers = {
        f"{way}_{size}_first_answer_p50_s": (median([first for first, _ in some]), "s")
        for way, some in seen.items()
    }
    return {**answers, f"memory_{size}_equal": (float(right), "yes")}


@click.command()
@click.option("--mib", default=1024, show_default=True, help="Memory of the process.")
@click.option("--samples", default=3, help="Restores of each way.")
@click.option("--lowest", is_flag=True, help="What the GPUs had lies where the server begins.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(mib: int, samples: int, lowest: bool, as_json: bool) -> None:
    """Measure first answers after restores, whole and lazy."""
    node, seats, metrics = Node("kyl", say, subnet="10.99"), list[Seat](), Metrics()
    try:
        with hostmemory.kept(mib):
            for size in (int(part * mib) for part in SHARES):
                sizes = Sizes(size, mib - size, highest=not lowest)
                metrics |= share(node, seats, sizes, samples)
    finally:
        for one in seats:
            one.close()
        node.close()
    emit("lazily", metrics, {"name": "restored whole, in turn with the others"}, as_json=as_json)
    if not all(value for name, (value, _) in metrics.items() if name.endswith("_equal")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
