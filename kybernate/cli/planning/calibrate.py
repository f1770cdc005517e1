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
from kybernate.core.tiers.tiers import Speed
from kybernate.gen import agent_pb2 as pb
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOVES = {"park": "checkpoint", "wake": "restore", "dump": "dump", "restore": "restore"}
"""The phase of each in which the bytes are moved: by the driver, or by CRIU."""
_Found = dict[str, list[tuple[int, float, float]]]
"""Of each step its times: bytes, seconds in which they were moved, and seconds besides."""


@click.command("calibrate")
@click.argument("seats", metavar="SEAT...", nargs=-1, required=True)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How often each seat is parked and woken.",
)
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
    rounds, through the agent: requests in flight end first, and those that come meanwhile wait.
    Where the node has NVMe for parked states, each goes there and comes back in each round, too.
    The figures are the medians over all rounds of all seats; take seats like those that you have.
    The agent goes by none of them: of each seat it keeps what its own last wake took, these too.

    A box (`kybernate serve`) has no such socket. There name what you know to `kybernate simulate`,
    by --wake and --park.

    \b
    Example:
      kybernate calibrate shop/llama shop/qwen --out costs.json
      kybernate simulate trace.csv --models models.csv --costs costs.json
    """
    found: _Found = {"park": [], "wake": []}
    with connected(socket) as agent:
        status = agent.GetStatus(pb.GetStatusRequest(), timeout=CALL_LIMIT)
        below = any(tier.name == Tier.NVME for tier in status.tiers)
        for name in seats:
            uid = find_seat(status, name).uid
            _done(agent, agent.Wake(pb.WakeRequest(uid=uid, why="calibrate"), timeout=CALL_LIMIT))
            for _ in range(rounds):
                _round(agent, uid, found, below=below)
        memory = min(gpu.memory_bytes for gpu in status.gpus)
    measured = _measured(found, memory)
    nvme = _nvme(found) if below else None
    text = write_costs(measured, nvme)
    if not below:
        click.echo("this node has no NVMe for parked states: the file says nothing of it", err=True)
    if out is None:
        click.echo(text)
        return
    out.write_text(text + "\n")
    click.echo(
        f"{out}: park {measured.park:.3g} GB/s, wake {measured.wake:.3g} GB/s, "
        f"{measured.fixed:.3g} s besides" + (f"; {_words(nvme)}" if nvme else "")
    )


def _round(agent: Any, uid: str, found: _Found, *, below: bool) -> None:
    took = {"park": _park(agent, uid, Tier.RAM)}
    if below:
        took["dump"] = _park(agent, uid, Tier.NVME)
        took["restore"] = _park(agent, uid, Tier.RAM)
    held = find_seat(agent.GetStatus(pb.GetStatusRequest(), timeout=CALL_LIMIT), uid).held_bytes
    woken = agent.Wake(pb.WakeRequest(uid=uid, why="calibrate"), timeout=CALL_LIMIT)
    took["wake"] = _done(agent, woken)
    if not held:
        raise click.ClickException(f"seat {uid} holds no GPU memory: name one that has its model")
    for step, phases in took.items():
        moving = phases.get(_MOVES[step], phases.get("all", 0.0))
        besides = max(0.0, phases.get("all", moving) - moving)
        found.setdefault(step, []).append((held, moving, besides))


def _park(agent: Any, uid: str, tier: Tier) -> Mapping[str, float]:
    asked = pb.ParkRequest(uid=uid, why="calibrate", tier=tier)
    return _done(agent, agent.Park(asked, timeout=CALL_LIMIT))


def _done(agent: Any, operation: pb.Operation) -> Mapping[str, float]:
    """Seconds by phase, once it has ended; raises ClickException if it did not succeed."""
    stream = agent.WatchOperation(pb.GetOperationRequest(name=operation.name))
    ended = [operation, *stream][-1]
    if ended.state != "succeeded":
        raise click.ClickException(
            f"{ended.kind} of {ended.namespace}/{ended.pod} {ended.state}: {ended.sentence}"
        )
    return {phase.name: phase.seconds for phase in ended.phases}


def _measured(found: _Found, memory: int) -> Costs:
    wake, park = _rate(found["wake"]), _rate(found["park"])
    return Costs(memory / 1e9, wake / 1e9, park / 1e9, _besides(found, "park", "wake"))


def _nvme(found: _Found) -> Speed:
    write, read = _rate(found["dump"]), _rate(found["restore"])
    return Speed(write, read, _besides(found, "dump", "restore"))


def _rate(those: Iterable[tuple[int, float, float]]) -> float:
    """Bytes per second."""
    return median(held / max(moving, 1e-6) for held, moving, _ in those)


def _besides(found: _Found, *steps: str) -> float:
    return median(rest for step in steps for _, _, rest in found[step])


def _words(nvme: Speed) -> str:
    return (
        f"to NVMe {nvme.write / 1e9:.3g} GB/s, from it {nvme.read / 1e9:.3g} GB/s, "
        f"{nvme.latency:.3g} s besides"
    )
