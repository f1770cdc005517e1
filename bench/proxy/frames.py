"""How smoothly a browser draws a cluster's page of 500 seats, while 50 of them a second change.

A headless Chromium, which paints without a GPU. The page is the proxy's own, the seats are
invented.
"""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from aiohttp import web

from bench.report import emit
from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import Client, Limits, SeatInfo
from proxy.admission import Admission
from proxy.desk import Desk
from proxy.page.board import Board
from proxy.page.door import Door
from proxy.page.shape import Scene
from tests.kit.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from bench.report import Metrics

SEATS, A_GROUP = 500, 4
SWAPS_A_SECOND = 50
SETTLE_MS = 2000
AROUND = (SeatState.WAKING, SeatState.ACTIVE, SeatState.PARKING, SeatState.PARKED)
MEASURE = """
async (milliseconds) => {
  const times = [], tasks = [];
  const seen = new PerformanceObserver((list) => {
    for (const one of list.getEntries()) tasks.push(one.duration);
  });
  seen.observe({ type: "longtask" });
  const until = performance.now() + milliseconds;
  let last = performance.now();
  while (last < until) {
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - last);
    last = performance.now();
  }
  seen.disconnect();
  times.sort((a, b) => a - b);
  const of = (share) => times[Math.min(times.length - 1, Math.floor(share * times.length))];
  return {
    frames: times.length, p50: of(0.5), p95: of(0.95), p99: of(0.99), longest: times.at(-1),
    tasks: tasks.filter((one) => one > 200).length,
  };
}
"""
"""Milliseconds from frame to frame, and how many tasks of the page's own took more than 200 ms."""


class Nowhere:
    """Implements `proxy.desk.Connections`."""

    def drop(self, uid: PodUid) -> None:
        """There are none."""


class Crowd:
    """A proxy's page, and seats that come and go in GPU memory; in a thread of its own."""

    def __init__(self, seats: int = SEATS, swaps: float = SWAPS_A_SECOND) -> None:
        """`swaps`: a second."""
        self._seats, self._swaps = [_seat(number) for number in range(seats)], swaps
        self.port = 0
        self._began, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._over = asyncio.Event()

    def start(self) -> None:
        self._thread.start()
        assert self._began.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)
        self._loop.close()

    async def _run(self) -> None:
        admission, seats = Admission(Limits()), self._seats
        board = Board(admission, lambda: Scene("cluster"))
        desk = Desk(admission, Nowhere(), board)
        door = Door(board, lambda _: Client())
        app = web.Application()
        door.routes(app.router.add_route)
        app.on_shutdown.append(door.close)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        for seat in seats:
            desk.seat(seat)
        self._began.set()
        chance = random.Random(1)
        while not self._over.is_set():
            await asyncio.sleep(1 / self._swaps)
            number = chance.randrange(len(seats))
            seats[number] = _next(seats[number])
            desk.seat(seats[number])
            desk.over(seats[number].route, 200, chance.random())
        await runner.cleanup()


def _seat(number: int) -> SeatInfo:
    group = number // A_GROUP
    state = SeatState.ACTIVE if number % A_GROUP == 0 else SeatState.PARKED
    node, name = NodeName(f"gpu-{group // 8:02}"), f"model-{number:03}"
    return SeatInfo(
        PodUid(f"uid-{number}"), node, f"s{number}", f"G{group % 8}", name, name, state,
        reason="seat model-007 needs its GPUs", wakes=number, namespace="team",
        tier="" if state is SeatState.ACTIVE else "ram", size=number << 28, wake=1.5,
    )  # fmt: skip


def _next(seat: SeatInfo) -> SeatInfo:
    state = AROUND[(AROUND.index(seat.state) + 1) % len(AROUND)]
    return replace(seat, state=state, tier="ram" if state is SeatState.PARKED else "")


def frames(page: Page, seconds: float) -> dict[str, float]:
    """What MEASURE says of a page that is open and has settled."""
    page.wait_for_timeout(SETTLE_MS)
    found: dict[str, float] = page.evaluate(MEASURE, seconds * 1000)
    return found


def measure(seats: int, seconds: float) -> Metrics:
    crowd = Crowd(seats)
    crowd.start()
    try:
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"http://127.0.0.1:{crowd.port}/ui/")
            page.locator("#shown", has_text=str(seats)).wait_for()
            found = frames(page, seconds)
    finally:
        crowd.stop()
    return {
        "frames_per_s": (found["frames"] / seconds, "1/s"),
        **{f"frame_{name}": (found[name], "ms") for name in ("p50", "p95", "p99", "longest")},
        "tasks_above_200_ms": (found["tasks"], "tasks"),
    }


@click.command()
@click.option("--seats", default=SEATS, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="For so long frames are counted.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(seats: int, seconds: float, *, as_json: bool) -> None:
    """Measure the page."""
    baseline = {"name": "a screen that is drawn 60 times a second", "frame_p50_ms": 16.7}
    emit("proxy.frames", measure(seats, seconds), baseline, as_json=as_json)


if __name__ == "__main__":
    main()
