"""`kybernate replay`: what would be decided for the pods of a dump."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
import orjson
import rich.table
from rich.console import Console

from kybernate.core.placement import POLICIES, Table, Weights, parse_weights
from kybernate.core.placement.mix import learn
from kybernate.core.views.dump import decode, encode
from kybernate.core.views.replay import Replay

if TYPE_CHECKING:
    from typing import BinaryIO

    from kybernate.core.views.dump import Dump
    from kybernate.core.views.replay import Decision


@click.command("replay")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--policy",
    type=click.Choice(sorted(POLICIES)),
    help="Decide by this policy, and not by the one that was in use.",
)
@click.option("--bound", is_flag=True, help="Decide again about the pods that are placed, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(file: BinaryIO, policy: str | None, *, bound: bool, as_json: bool) -> None:
    """Say what would be decided for the pods in FILE, which `kybernate dump` wrote.

    Pods that wait are placed one after the other, each beside those before it, by the functions
    that the extender uses. The kube-scheduler's own rules are left out.
    """
    try:
        parsed = orjson.loads(file.read())
    except orjson.JSONDecodeError as error:
        raise click.ClickException(f"{file.name} is not JSON: {error}") from error
    dump = decode(parsed)
    used = policy or dump.policy
    _check(dump)
    table = Table(used, _weights(dump))
    table.take(table.made(learn(dump.mix)))
    replay = Replay(dump, (lambda _demand: table.named(used)) if policy else table.of)
    decided = list(chain(replay.bound() if bound else (), replay.pending()))
    if as_json:
        found = {"policy": used, "taken_at": dump.taken_at, "pods": [_row(one) for one in decided]}
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        show(decided, used, Console())


def show(decided: list[Decision], policy: str, console: Console) -> None:
    """Print a line per pod, and how many of them found a place."""
    table = rich.table.Table("pod", "decision", "fitting", "points")
    for one in decided:
        table.add_row(str(one.pod), sentence(one), str(one.fitting), str(one.points))
    console.print(table)
    placed = sum(one.node is not None for one in decided)
    console.print(f"policy {policy}: {placed} of {len(decided)} pods have a place", markup=False)


def sentence(one: Decision) -> str:
    """The decision in words."""
    if one.node is None:
        reasons = Counter(one.reasons or {}).most_common(3)
        why = "; ".join(f"{count} nodes: {reason}" for reason, count in reasons)
        return f"waits: {why or 'there are no nodes'}"
    here = f"{one.node}, group {one.group}"
    if one.was is None or one.was == (one.node, one.group):
        return here if one.was is None else f"stays on {here}"
    return f"{here}, and not {one.was[0]}, group {one.was[1]}"


def _row(one: Decision) -> dict[str, Any]:
    found: dict[str, Any] = encode(one)
    return {**found, "decision": sentence(one)}


def _weights(dump: Dump) -> Weights:
    return parse_weights(",".join(map(str, dump.weights)), "weights")


def _check(dump: Dump) -> None:
    """Refuse policies that nobody knows here, as of a newer dump."""
    named = {one.demand.policy for one in (*dump.pending, *dump.movable) if one.demand}
    for name in sorted((named | {dump.policy}) - POLICIES.keys() - {""}):
        known = ", ".join(sorted(POLICIES))
        raise click.ClickException(f"the dump's policy {name!r} is unknown; choose one: {known}")
