"""`kybernate plan`: how many GPUs a cluster would save, and which workloads must not share."""

from __future__ import annotations

import time
from dataclasses import asdict
from random import Random
from typing import TYPE_CHECKING, Any

import click
import orjson
import rich.table
from rich.console import Console
from rich.markup import escape

from kybernate.adapters.prometheus import Prometheus
from kybernate.api import pods
from kybernate.cli.cluster.link import Source, cluster_options, link_to, listed
from kybernate.cli.options import Number
from kybernate.cli.planning.costs import cost_options, costs_of
from kybernate.cli.planning.gpupods import BETWEEN, gpu_pods
from kybernate.cli.planning.planpicture import picture
from kybernate.core.simulate.history import by_owner, workload_of
from kybernate.core.simulate.saving import save
from kybernate.core.simulate.workloads import read_workloads, write_workloads
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from kybernate.core.simulate.history import GpuPod, Unseen
    from kybernate.core.simulate.place import Place
    from kybernate.core.simulate.saving import Saving
    from kybernate.core.simulate.workloads import Workload
    from kybernate.core.simulate.world import Costs


_USED = ("gpu_gb", "wake", "park", "fixed", "room", "slots")
"""The costs that a plan goes by."""


@click.command("plan")
@click.argument("workloads", type=click.File("rb"), required=False)
@click.option(
    "--prometheus",
    metavar="URL",
    help="In place of the file: a Prometheus that scrapes NVIDIA's dcgm-exporter.",
)
@click.option(
    "--cluster",
    "asks_cluster",
    is_flag=True,
    help="With --prometheus: ask the API server, too, whose the pods are, and which have no "
    "history.",
)
@cluster_options(namespaced=False)
@click.option(
    "--p99",
    type=Number(min=0),
    default=5.0,
    show_default=True,
    help="With --prometheus: each workload's p99_s.",
)
@click.option(
    "--write",
    "written",
    type=click.File("w", lazy=True),
    help="With --prometheus: write what it has as a file of workloads.",
)
@click.option(
    "--seconds",
    type=Number(min=0.001),
    default=4.0,
    show_default=True,
    help="A request's work, where the file has no column of them.",
)
@cost_options
@click.option("--seed", type=int, default=0, show_default=True, help="Of the day's requests.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or one JSON document.",
)
@click.option(
    "--picture", "drawn", type=click.File("w", lazy=True), help="Draw it into this file, as SVG."
)
@click.pass_context
def command(ctx: click.Context, /, workloads: BinaryIO | None, **options: Any) -> None:
    """Say on how few GPUs the WORKLOADS of a cluster would run, and which must not share.

    WORKLOADS is a CSV file: workload, namespace, gpus (used together), vram_gib (on each),
    requests_per_hour (one number, or 24 with blanks between, one for each hour of a day), p99_s
    (99 of 100 requests are to begin within so many seconds) and, if you like, seconds (that a
    request is worked on). A day of requests that come by chance is played under the node agent's
    own decisions. Nothing is asked of a cluster, and nothing is changed.

    With --prometheus the last day of each pod that has GPUs now is read, and nothing is changed
    either. A GPU knows no requests: each minute in which it worked counts as one. Write the file,
    correct it by what you know, and plan with that. With --cluster pods are named by their
    Deployment, StatefulSet or Job, and pods without a history are told: they are not planned.

    \b
    Example:
      kybernate plan config/samples/workloads.csv
      kybernate plan config/samples/workloads.csv -o json --picture plan.svg
      kybernate plan --prometheus http://localhost:9090 --write workloads.csv
      kybernate plan --prometheus http://localhost:9090 --cluster --context prod
    """
    costs = costs_of(ctx, options)
    url = options["prometheus"]
    if (workloads is None) is (url is None):
        raise click.UsageError("name a file of WORKLOADS, or --prometheus URL, and one of them")
    if options["asks_cluster"] and workloads:
        raise click.UsageError("--cluster goes with --prometheus: a file names its workloads")
    unseen: list[Unseen] = []
    if workloads:
        read = _read(workloads, options["seconds"])
    else:
        read, unseen = _seen(url, options)
    found = save(read, costs, chances(options["seed"]))
    if options["drawn"]:
        options["drawn"].write(picture(found, sentence(found), _unplanned(unseen)))
    if options["output"] == "json":
        record = {**_record(found, costs, options), "not_planned": list(map(_left_out, unseen))}
        click.echo(orjson.dumps(record, option=orjson.OPT_INDENT_2))
    else:
        _show(found, costs, options["seed"], _unplanned(unseen))


def chances(seed: int) -> Callable[[str], Random]:
    """What is drawn for each name: the same for the same seed."""
    return lambda name: Random(f"{seed} {name}")  # noqa: S311 - no secret


def sentence(found: Saving) -> str:
    """The plan in one sentence."""
    count = found.workloads
    runs = f"{count} workload{'s' * (count != 1)} on {_gpus(found.today)}"
    if found.gpus == found.today:
        return f"{runs}: sharing saves none."
    return f"{runs} would run on {found.gpus}, at p99 wake {found.p99:.1f} s."


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _read(file: BinaryIO, seconds: float) -> list[Workload]:
    try:
        text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(file.name, f"it is no UTF-8 text ({error}); save it as such") from error
    return read_workloads(text.splitlines(), file.name, seconds)


def _seen(url: str, options: dict[str, Any]) -> tuple[list[Workload], list[Unseen]]:
    """What a Prometheus has of the last day; into a file, too, where one is named. And what the
    API server has besides, if it is asked."""
    unseen: list[Unseen] = []
    day = Prometheus(url).day(time.time())
    if options["asks_cluster"]:
        day, unseen = by_owner(day, _pods(options))
    found = [workload_of(one, options["p99"], f"{one.namespace}/{one.name}") for one in day]
    if options["written"]:
        options["written"].write(write_workloads(found))
    return found, unseen


def _pods(options: dict[str, Any]) -> list[GpuPod]:
    api = link_to(options).api
    between = [one for path in BETWEEN for one in listed(api.of_metadata(), Source(path, {}))]
    return gpu_pods(listed(api, Source(pods.PATH, {})), between)


def _unplanned(unseen: Sequence[Unseen]) -> list[str]:
    """A line for each workload that the plan knows nothing of."""
    return [
        f"No history, not planned: {one.namespace}/{one.owner}, "
        f"{one.pods} pod{'s' * (one.pods != 1)} on {_gpus(one.gpus)}."
        for one in unseen
    ]


def _left_out(one: Unseen) -> dict[str, object]:
    return {**asdict(one), "why": "no history"}


def _show(found: Saving, costs: Costs, seed: int, unplanned: Sequence[str]) -> None:
    console = Console()
    table = rich.table.Table("GPUs", "workload", "p99 wake", "limit", "requests/h", "busiest at")
    for place in found.places:
        for number, one in enumerate(place.workloads):
            table.add_row(
                str(place.gpus) if not number else "",
                escape(one.key),
                f"{place.p99(number):.1f} s" if place.shared else "stays awake",
                f"{one.p99:g} s",
                f"{sum(one.by_hour) / len(one.by_hour):.3g}",
                f"{one.busiest}:00",
                end_section=number == len(place.workloads) - 1,
            )
    console.print(table)
    lines = [sentence(found), *unplanned]
    if found.conflicts:
        lines += ["These must not share:"]
    for conflict in found.conflicts:
        names = " and ".join(one.key for one in conflict.workloads)
        lines.append(
            f"  {names}{'' if len(conflict.workloads) > 1 else ' with any'}: {conflict.why}."
        )
    lines.append(
        f"Assumed: GPUs of {costs.gpu_gb:g} GB, {costs.wake:g} GB/s in and {costs.park:g} GB/s "
        f"out, {costs.fixed:g} s besides, {found.parked_gib:.0f} GiB of host memory for what is "
        f"parked, seed {seed}."
    )
    click.echo("\n".join(lines))


def _record(found: Saving, costs: Costs, options: dict[str, Any]) -> dict[str, object]:
    return {
        "sentence": sentence(found),
        "gpus_today": found.today,
        "gpus": found.gpus,
        "wake_p99": found.p99,
        "parked_gib": found.parked_gib,
        "assumed": {name: getattr(costs, name) for name in _USED}
        | {"seed": options["seed"], "seconds": options["seconds"]},
        "places": [_place(place) for place in found.places],
        "must_not_share": [
            {"workloads": [one.key for one in conflict.workloads], "why": conflict.why}
            for conflict in found.conflicts
        ],
    }


def _place(place: Place) -> dict[str, object]:
    return {
        "gpus": place.gpus,
        "swaps_per_hour": place.swaps_per_hour,
        "interrupted": place.interrupted,
        "workloads": [
            {"namespace": one.namespace, "workload": one.name, "owner": one.owner}
            | {"wake_p99": place.p99(number), "p99_s": one.p99, "busiest_hour": one.busiest}
            for number, one in enumerate(place.workloads)
        ],
    }
