"""Who shares a GPU with whom, and what that does to waits: placement with and without traffic.

Models with busy hours of their own are placed one by one by the product's `default` policy, once
knowing what GPUNodes would tell of their traffic, once not. Then a day of requests is played, GPU
by GPU, by the product's swap decision in virtual time. Arrivals and lengths are those of the
Azure LLM inference trace (conversations, 2023; Patel et al., "Splitwise", ISCA 2024), thinned:
the trace's hour is each hour of the day, shifted for each model and hour. Nothing is random.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cluster.fleet import GIB, node_seats
from bench.placement.seatsim import Request, simulate
from bench.report import emit, percentile, say, skip
from kybernate import keys
from kybernate.core.ledger.ledger import Claim, NodeView
from kybernate.core.placement import POLICIES, Demand, choose_group
from kybernate.core.placement.colocation import hot_together
from kybernate.core.swap.activity import HOURS, Recorder
from kybernate.core.swap.forecast import SELDOM, Sharer, observed, turns, waits
from kybernate.core.tiers.tiers import switch_seconds
from kybernate.types import NodeName, PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.report import Metrics
    from kybernate.core.swap.forecast import Traffic

TRACE = Path(__file__).parents[3] / "shared/data/azure-llm/AzureLLMInferenceTrace_conv.csv.gz"
HOUR = 3600.0
DAY = HOURS * HOUR
RESOURCE = keys.seat_resource(1)
NODE = NodeName("n1")
SEATS = 4
PREFILL, DECODE = 2000.0, 20.0
"""Tokens per second of a prompt, and of one answer."""

BUSY_THIN, QUIET_THIN = 80, 2000
"""Of how many requests of the trace a model gets one, in its busy hours and in the others."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model: its name, bytes of GPU memory, and the hours in which it is busy."""

    name: str
    size: int
    hours: frozenset[int]


@dataclass(frozen=True, slots=True)
class Row:
    """One request of the trace: seconds since its first, and seconds of work."""

    at: float
    length: float


def read_trace(path: Path) -> list[Row]:
    """The trace's requests in the order of their arrival."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), row) for row in csv.DictReader(file)
        ]
    first = rows[0][0]
    return [
        Row(
            (at - first).total_seconds(),
            int(row["ContextTokens"]) / PREFILL + int(row["GeneratedTokens"]) / DECODE,
        )
        for at, row in rows
    ]


def models_of(count: int) -> list[Model]:
    """Models of three shifts and three sizes, in an order that mixes them."""
    found = []
    for number in range(count):
        begin = 8 * (number % 3) + (number // 3) % 3
        hours = frozenset((begin + hour) % HOURS for hour in range(6 + number % 2))
        size = (16, 40, 64)[(number // 2) % 3] * GIB
        found.append(Model(f"m{number:02}", size, hours))
    # By a stride that meets all: neighbours in time of coming are of different shifts by chance.
    stride = next(s for s in (7, 11, 13, 17) if count % s)
    return [found[at * stride % count] for at in range(count)]


def day_of(model: Model, trace: Sequence[Row]) -> list[Request]:
    """A day of the model's requests."""
    number, requests = int(model.name[1:]), []
    for hour in range(HOURS):
        thin = BUSY_THIN if hour in model.hours else QUIET_THIN
        first = (37 * number + 11 * hour) % thin
        shift = (977.0 * number + 331.0 * hour) % HOUR
        requests += [
            Request(hour * HOUR + (row.at + shift) % HOUR, row.length) for row in trace[first::thin]
        ]
    return sorted(requests, key=lambda request: request.at)


def seen_alone(requests: Sequence[Request]) -> Traffic | None:
    """What a GPUNode would tell of a model after such a day on a GPU of its own."""
    recorder = Recorder(0.0)

    def watch(now: float, _seat: int, in_flight: int, waiting: int) -> None:
        if now < DAY:
            recorder.note(now, serving=in_flight > 0, wanted=in_flight + waiting > 0)

    simulate([requests], [0.0], watch=watch)
    recorder.advance(DAY - 1)
    busy, calls = recorder.profile()
    return observed([round(1000 * share) for share in busy], calls)


def place(view: NodeView, models: Sequence[Model], known: dict[str, Traffic | None]) -> NodeView:
    """Place the models one by one by the default policy; `known` is what is told of them."""
    for model in models:
        demand = Demand(RESOURCE, model.size, traffic=known.get(model.name))
        group = choose_group(view, demand, POLICIES["default"])
        if group is None:
            raise click.ClickException("more models than seats: give more GPUs or seats")
        pod = PodRef("bench", model.name, PodUid(model.name))
        claim = Claim(pod, NODE, group.name, RESOURCE, model.size, traffic=demand.traffic)
        view = replace(view, claims=(*view.claims, claim))
    return view


def outcome(
    view: NodeView, models: dict[str, Model], days: dict[str, list[Request]]
) -> tuple[list[float], list[float], int]:
    """Play the day on each GPU: the waits of all requests and of calls, in seconds, and wakes."""
    waits: list[float] = []
    calls: list[float] = []
    wakes = 0
    for group in view.seats.groups:
        names = [claim.pod.name for claim in view.claims if claim.group == group.name]
        switch = [switch_seconds(models[one].size, 1) for one in names]
        for each in simulate([days[one] for one in names], switch):
            waits += each.waits
            calls += each.calls
            wakes += each.wakes
    return waits, calls, wakes


def own_wait_seconds(present: Sequence[Sharer], newcomer: Sharer, slots: int = 1) -> float:
    """Seconds that the newcomer's calls themselves would wait, on average over the day."""
    waited = calls = 0.0
    for hour in range(HOURS):
        column = [
            (one.traffic.busy[hour], max(one.traffic.calls[hour], SELDOM), one.switch)
            for one in (*present, newcomer)
        ]
        waited += column[-1][1] * waits(turns(column, slots), slots)[-1]
        calls += column[-1][1]
    return waited / calls


def forecast(
    view: NodeView, models: dict[str, Model], known: dict[str, Traffic]
) -> tuple[float, float]:
    """The waits that are expected for calls, in seconds: the mean, and of which model 99 % of all
    calls have one no longer."""
    found = []
    for group in view.seats.groups:
        names = [claim.pod.name for claim in view.claims if claim.group == group.name]
        sharers = {n: Sharer(known[n], switch_seconds(models[n].size, 1)) for n in names}
        for one in names:
            others = [sharers[other] for other in names if other != one]
            found.append((own_wait_seconds(others, sharers[one]), sum(known[one].calls)))
    calls = sum(count for _, count in found)
    mean = sum(wait * count for wait, count in found) / calls
    most = 0.0
    for wait, count in sorted(found):
        most += count
        if most >= 0.99 * calls:
            return mean, wait
    return mean, max(found)[0]


def clashes(view: NodeView, known: dict[str, Traffic]) -> int:
    """How many models share a GPU with one that is hot at the same hours."""
    found = 0
    for claim in view.claims:
        told = tuple(
            replace(other, traffic=known[other.pod.name]) for other in view.claims if other != claim
        )
        group = next(one for one in view.seats.groups if one.name == claim.group)
        demand = Demand(RESOURCE, claim.vram, traffic=known[claim.pod.name])
        found += bool(hot_together(replace(view, claims=told), group, demand))
    return found


@click.command(help=__doc__)
@click.option("--trace", type=click.Path(path_type=Path), default=TRACE, show_default=False)
@click.option("--models", "count", default=24, show_default=True)
@click.option("--gpus", default=8, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON line on stdout.")
def main(trace: Path, count: int, gpus: int, *, as_json: bool) -> None:
    """See the module."""
    if not trace.exists():
        skip("colocate", f"there is no trace at {trace}; --trace names another place")
        return
    rows = read_trace(trace)
    models = models_of(count)
    days = {model.name: day_of(model, rows) for model in models}
    say(f"{count} models, {gpus} GPUs, {sum(map(len, days.values()))} requests in a day")
    known = {name: seen_alone(day) for name, day in days.items()}
    told = {name: traffic for name, traffic in known.items() if traffic is not None}
    by_name = {model.name: model for model in models}
    empty = NodeView(node_seats(NODE, SEATS, gpus=gpus))
    views = {
        "traffic unknown": place(empty, models, {}),
        "traffic known": place(empty, models, known),
        "one of each shift": by_shift(empty, models),
    }
    found = {name: figures(view, by_name, days, told) for name, view in views.items()}
    for name, each in found.items():
        say(f"  {name}: " + ", ".join(f"{key} {value:.2f}" for key, value in each.items()))
    mine = found.pop("traffic known")
    metrics: Metrics = {key: (value, _UNITS.get(key, "s")) for key, value in mine.items()}
    for key in ("wait_mean_s", "wait_p99_s"):
        ratio = mine[key] / found["traffic unknown"][key]
        metrics[f"{key.removesuffix('_s')}_ratio"] = ratio, "x"
    emit("colocate", metrics, found, as_json=as_json)


_UNITS = {"hot_together": "models", "wakes": "wakes"}


def by_shift(view: NodeView, models: Sequence[Model]) -> NodeView:
    """One model of each shift to a GPU, as far as they go: what somebody would do who knows how
    the models were made."""
    ordered = sorted(models, key=lambda model: (int(model.name[1:]) % 3, model.name))
    groups = view.seats.groups
    for at, model in enumerate(ordered):
        group = groups[at % len(groups)]
        pod = PodRef("bench", model.name, PodUid(model.name))
        claim = Claim(pod, NODE, group.name, RESOURCE, model.size)
        view = replace(view, claims=(*view.claims, claim))
    return view


def figures(
    view: NodeView,
    models: dict[str, Model],
    days: dict[str, list[Request]],
    known: dict[str, Traffic],
) -> dict[str, float]:
    """What came of an arrangement."""
    waits, calls, wakes = outcome(view, models, days)
    mean, p99 = forecast(view, models, known)
    return {
        "wait_mean_s": sum(waits) / len(waits),
        "wait_p99_s": percentile(waits, 99),
        "call_wait_mean_s": sum(calls) / len(calls),
        "call_wait_p99_s": percentile(calls, 99),
        "expected_mean_s": mean,
        "expected_p99_s": p99,
        "hot_together": float(clashes(view, known)),
        "wakes": float(wakes),
    }


if __name__ == "__main__":
    main()
