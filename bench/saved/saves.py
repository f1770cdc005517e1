"""A server in a pod that is saved while it is asked all the time: how long it stands still, and how
much slower it is while its state is sealed and copied.

The pod holds a seat on a real node. `pause` is the agent's own: from the moment when no new request
starts until the server runs again. `gap` is a client's, the longest time without an answer while it
asks on one new connection after another; a first packet that is dropped comes again after a second.
Bare `criu dump` of the same server in a pod beside it is what could not be shorter.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

import click

from bench.node import parkpods
from bench.node.parkload import WORKLOADS
from bench.report import Metrics, emit, median, say

if TYPE_CHECKING:
    from bench.node.parkload import Workload
    from tests.kit.clients.served import Served

QUIET = 6.0
"""Seconds of undisturbed service before each save."""


class Client(threading.Thread):
    """Asks again and again, and notes when each answer came."""

    def __init__(self, served: Served, workload: Workload) -> None:
        super().__init__(daemon=True)
        self._served, self._workload = served, workload
        self._over = threading.Event()
        self.answers: list[float] = []

    def run(self) -> None:
        """Until `stop`."""
        while not self._over.is_set():
            if self._workload.answers(self._served):
                self.answers.append(time.monotonic())

    def stop(self) -> None:
        """No more questions."""
        self._over.set()
        self.join()

    def gap(self, since: float) -> tuple[float, float]:
        """The longest time without an answer, and when it ended."""
        times = [t for t in self.answers if t >= since]
        return max((b - a, b) for a, b in itertools.pairwise(times))

    def rate(self, since: float, until: float) -> float:
        """Answers per second."""
        return sum(since <= t < until for t in self.answers) / max(until - since, 1e-6)


@click.command()
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default="redis")
@click.option("--mib", default=1024, show_default=True, help="What Redis holds.")
@click.option("--samples", default=5, help="Saves into each tier.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(workload: str, mib: int, samples: int, as_json: bool) -> None:
    """Measure saves of a server that goes on."""
    chosen = WORKLOADS[workload]
    with parkpods.rig(chosen, mib) as rig:
        before = chosen.known(rig.served)
        metrics: Metrics = {}
        for tier in ("nvme", "object"):
            metrics |= _measure(rig, chosen, tier, samples)
        bare = []
        for _ in range(samples):
            bare.append(rig.bare.dump())
            rig.bare.restore()
        equal = chosen.known(rig.served) == before
    dump = median(bare)
    metrics["pause_ratio_criu"] = (metrics["nvme_pause_p50_s"][0] / dump, "x")
    metrics["keys_equal"] = (float(equal), "yes")
    known = {"name": "kyb-enter and criu dump alone, in turn", "dump_p50_s": round(dump, 4)}
    emit(f"saves-{workload}", metrics, known, as_json=as_json)
    if not equal:
        raise SystemExit(1)


def _measure(rig: parkpods.Rig, workload: Workload, tier: str, samples: int) -> Metrics:
    """So many saves into one tier."""
    pauses, gaps, slower, totals = [], [], [], []
    for number in range(samples):
        client = Client(rig.served, workload)
        client.start()
        time.sleep(QUIET)
        began = time.monotonic()
        usual = client.rate(began - QUIET / 2, began)
        seconds, phases = rig.verbs.save(tier)
        ended = time.monotonic()
        time.sleep(0.2)
        client.stop()
        gap, up = client.gap(began - 0.5)
        pauses.append(phases.get("pause", gap))
        gaps.append(gap)
        slower.append(usual / max(client.rate(up, ended), 1e-6) if ended - up > 0.2 else 1.0)
        totals.append(seconds)
        told = {name: round(took, 3) for name, took in phases.items()}
        say(f"{tier} {number + 1}: {seconds:.2f} s, {gap:.3f} s without an answer; {told}")
    return {
        f"{tier}_pause_p50_s": (median(pauses), "s"),
        f"{tier}_gap_p50_s": (median(gaps), "s"),
        f"{tier}_slowdown_p50": (median(slower), "x"),
        f"{tier}_save_p50_s": (median(totals), "s"),
    }


if __name__ == "__main__":
    main()
