"""`kybernate calibrate`: what swaps cost on this node, for `kybernate simulate --costs`."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.cli.agent.link import CALL_LIMIT, connected, find_seat
from kybernate.core.simulate.costs import write_costs
from kybernate.core.simulate.world import Costs
from kybernate.gen import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOVES = {"park": "checkpoint", "wake": "restore"}
"""The phase of each in which the driver moves the bytes."""


@click.command("calibrate")
@click.argument("seats", metavar="SEAT...", nargs=-1, required=True)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Else on stdout.")
@click.option(
    "--socket",
    default=keys.AGENT_SOCKET,
    show_default=True,
    envvar="KYB_AGENT_SOCKET",
    help="The agent's Unix socket.  (env KYB_AGENT_SOCKET)",
)
def command(seats: tuple[str, ...], rounds: int, out: Path | None, socket: str) -> None:
    """Park and wake seats of this node, and write what that took. Run it on the node, as root.

    Each SEAT, named as for `kybernate agent`, is woken, parked in RAM and woken again, so many
    rounds, through the agent: requests in flight end first, and those that come meanwhile wait. The
    figures are the medians over all rounds of all seats; take seats like those that you have.

    \b
    Example:
      kybernate calibrate shop/llama shop/qwen --out costs.json
      kybernate simulate trace.csv --models models.csv --costs costs.json
    """
    found: dict[str, list[tuple[int, float, float]]] = {"park": [], "wake": []}
    with connected(socket) as agent:
        status = agent.GetStatus(pb.GetStatusRequest(), timeout=CALL_LIMIT)
        for name in seats:
            uid = find_seat(status, name).uid
            _done(agent, agent.Wake(pb.WakeRequest(uid=uid, why="calibrate"), timeout=CALL_LIMIT))
            for _ in range(rounds):
                _round(agent, uid, found)
        memory = min(gpu.memory_bytes for gpu in status.gpus)
    measured = _measured(found, memory)
    text = write_costs(measured)
    if out is None:
        click.echo(text)
        return
    out.write_text(text + "\n")
    click.echo(
        f"{out}: park {measured.park:.3g} GB/s, wake {measured.wake:.3g} GB/s, "
        f"{measured.fixed:.3g} s besides"
    )


def _round(agent: Any, uid: str, found: dict[str, list[tuple[int, float, float]]]) -> None:
    parked = agent.Park(pb.ParkRequest(uid=uid, why="calibrate"), timeout=CALL_LIMIT)
    took = {"park": _done(agent, parked)}
    held = find_seat(agent.GetStatus(pb.GetStatusRequest(), timeout=CALL_LIMIT), uid).held_bytes
    woken = agent.Wake(pb.WakeRequest(uid=uid, why="calibrate"), timeout=CALL_LIMIT)
    took["wake"] = _done(agent, woken)
    if not held:
        raise click.ClickException(f"seat {uid} holds no GPU memory: name one that has its model")
    for step, phases in took.items():
        moving = phases.get(_MOVES[step], phases.get("all", 0.0))
        found[step].append((held, moving, max(0.0, phases.get("all", moving) - moving)))


def _done(agent: Any, operation: pb.Operation) -> Mapping[str, float]:
    """Seconds by phase, once it has ended; raises ClickException if it did not succeed."""
    stream = agent.WatchOperation(pb.GetOperationRequest(name=operation.name))
    ended = [operation, *stream][-1]
    if ended.state != "succeeded":
        raise click.ClickException(
            f"{ended.kind} of {ended.namespace}/{ended.pod} {ended.state}: {ended.sentence}"
        )
    return {phase.name: phase.seconds for phase in ended.phases}


def _measured(found: Mapping[str, list[tuple[int, float, float]]], memory: int) -> Costs:
    rates = {
        step: median(held / 1e9 / max(moving, 1e-6) for held, moving, _ in those)
        for step, those in found.items()
    }
    besides = median(rest for those in found.values() for _, _, rest in those)
    return Costs(memory / 1e9, rates["wake"], rates["park"], besides)
