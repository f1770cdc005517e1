"""`kybernate simulate`: how many GPUs a trace of requests needs, and how long they would wait."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import orjson
import rich.table
from rich.console import Console

from kybernate.cli.options import Number
from kybernate.cli.planning.costs import cost_options, costs_of, tier_options
from kybernate.core.policy.shares import PAR
from kybernate.core.simulate.ours import fixed
from kybernate.core.simulate.outcome import POLICIES, gpus_needed, simulate
from kybernate.core.simulate.trace import number_of, read_models, read_tenants, read_trace
from kybernate.core.simulate.world import Costs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from kybernate.core.simulate.outcome import Outcome
    from kybernate.core.simulate.world import Policy, World

_POSITIVE = Number(min=0, min_open=True)
_DEFAULT = Costs()


@click.command("simulate")
@click.argument("trace", type=click.File("r"))
@click.option(
    "--models",
    type=click.File("r"),
    required=True,
    help="CSV: model,gb and, if you like, tenant and turn (always).",
)
@click.option(
    "--weight",
    "weights",
    metavar="TENANT=WEIGHT",
    multiple=True,
    help=f"As of a Share: {PAR} for a tenant that isn't named. Of turns, with --policy fixed.",
)
@click.option("--gpus", type=click.IntRange(1, 4096), help="So many; else the fewest that do.")
@click.option(
    "--policy",
    type=click.Choice([*POLICIES, "all"]),
    default="all",
    show_default=True,
    help="ours: what kybernate serve decides, on any GPU; fixed: what the node agent decides, each "
    "model on one GPU, as pods are; fifo: first come, first served, on any GPU.",
)
@click.option(
    "--share",
    type=Number(0, 1, min_open=True),
    default=0.99,
    show_default=True,
    help="Of the requests, as many are to be in time.",
)
@click.option("--tokens-per-s", type=_POSITIVE, default=50.0, show_default=True)
@click.option(
    "--within",
    type=Number(0),
    default=_DEFAULT.slack,
    show_default=True,
    help="In time: begun within these seconds and twice the model's own wake.",
)
@cost_options
@tier_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def command(
    ctx: click.Context, /, trace: TextIO, models: TextIO, *, as_json: bool, **options: Any
) -> None:
    """Play TRACE, a CSV file of requests (at,model,seconds or at,model,tokens), in virtual time.

    The decisions are those of the node agent. Models may be woken on any of the GPUs, as those of
    kybernate serve, or each on one, as pods are on their group's (--policy fixed).
    Nothing is asked of a cluster, and nothing is changed.

    \b
    Example:
      printf 'model,gb\\nllama,40\\nqwen,16\\n' >models.csv
      printf 'at,model,seconds\\n0,llama,4\\n1,qwen,2\\n30,llama,4\\n' >trace.csv
      kybernate simulate trace.csv --models models.csv --gpus 1
    """
    lines = models.read().splitlines()
    sizes = read_models(lines, models.name)
    tenants, always = read_tenants(lines, models.name)
    shares = _shares(options["weights"], tenants)
    if always and options["policy"] != "fixed":
        raise click.UsageError("models that take turns (turn: always) need --policy fixed")
    costs = costs_of(ctx, options)
    for model, size in sizes.items():
        if size > costs.gpu_gb:
            raise click.ClickException(
                f"{models.name}: model {model!r} has {size:g} GB, and a GPU {costs.gpu_gb:g} "
                "(--gpu-gb); models on several GPUs can't be simulated yet"
            )
    largest = max(sizes, key=lambda model: sizes[model])
    if sizes[largest] > costs.ram_gb:
        raise click.ClickException(
            f"{models.name}: model {largest!r} has {sizes[largest]:g} GB, and RAM {costs.ram_gb:g} "
            "(--ram-gb): it could never be parked"
        )
    played = read_trace(trace, trace.name, sizes, options["tokens_per_s"])
    played = replace(played, tenants=tenants, always=always)
    policies: dict[str, Callable[[World], Policy]] = {
        **POLICIES,
        "fixed": partial(fixed, shares=shares),
    }
    names = list(POLICIES) if options["policy"] == "all" else [options["policy"]]
    found: dict[str, Outcome | None] = {}
    for name in names:
        gpus = options["gpus"] or gpus_needed(played, costs, policies[name], options["share"])
        found[name] = simulate(played, gpus, costs, policies[name]) if gpus else None
    if as_json:
        rows = {name: one.record() if one else None for name, one in found.items()}
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(found, played.sizes, costs, Console())


def _shares(weights: Sequence[str], tenants: Sequence[str]) -> dict[str, float]:
    """What each tenant gets against 1 of one that isn't named."""
    found = {}
    for one in weights:
        tenant, _, weight = one.partition("=")
        if tenant not in tenants:
            raise click.UsageError(f"--weight {one}: no model is {tenant!r}'s in the models' file")
        found[tenant] = number_of(weight, f"--weight {one}", least=1) / PAR
    return found


def _show(
    found: dict[str, Outcome | None], sizes: Sequence[float], costs: Costs, console: Console
) -> None:
    table = rich.table.Table(
        "policy", "GPUs", "in time", "wait p50", "p99", "longest", "swaps/h", "worst model", "Jain"
    )
    for name, one in found.items():
        if one is None:
            table.add_row(name, "-", f"not even on {len(sizes)} GPUs, one for each model")
            continue
        table.add_row(
            name,
            str(one.gpus),
            f"{one.in_time:.2%}",
            f"{one.wait_p50:.2f} s",
            f"{one.wait_p99:.2f} s",
            f"{one.wait_max:.1f} s",
            f"{one.swaps_per_hour:.0f}",
            f"{one.worst_model} ({one.worst_wait:.1f} s)",
            f"{one.fairness:.3f}",
        )
    console.print(table)
    console.print(f"one GPU for each model: {len(sizes)}", markup=False)
    if costs.ram_gb < math.inf:
        times = ", ".join(f"{name} {one.restores}" for name, one in found.items() if one)
        console.print(f"brought back from NVMe: {times} times", markup=False)
    for name, one in found.items():
        if one and one.gpu_seconds:
            each = ", ".join(f"{who} {round(had)}" for who, had in one.gpu_seconds.items())
            console.print(f"GPU-seconds by tenant, {name}: {each}", markup=False)
