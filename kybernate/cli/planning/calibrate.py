"""`kybernate calibrate`: what swaps cost on this node, for `kybernate simulate --costs`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kybernate import keys
from kybernate.cli.agent.link import CALL_LIMIT, connected, find_seat
from kybernate.cli.planning.boxlink import BoxLink
from kybernate.cli.planning.swaps import measure
from kybernate.core.simulate.costs import write_costs
from kybernate.gen import agent_pb2 as pb
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.cli.planning.swaps import Place
    from kybernate.core.tiers.tiers import Speed


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
@click.option("--url", help="In place of the agent: a box (kybernate serve), http://HOST:PORT.")
@click.option(
    "--key",
    envvar="KYB_BOX_KEY",
    default="",
    help="With --url: one of the box's apiKeys.  (env KYB_BOX_KEY)",
)
@click.pass_context
def command(ctx: click.Context, /, seats: tuple[str, ...], rounds: int, **options: Any) -> None:
    """Park and wake seats of this node, and write what that took. Run it on the node, as root.

    Each SEAT, named as for `kybernate agent`, is woken, parked in RAM and woken again, so many
    rounds, through the agent: requests in flight end first, and those that come meanwhile wait.
    Where the node has NVMe for parked states, each goes there and comes back in each round, too.
    The figures are the medians over all rounds of all seats; take seats like those that you have.
    The agent goes by none of them: of each seat it keeps what its own last wake took, these too.

    Of a box (`kybernate serve`) --url is its address, and each SEAT a model of its file. That needs
    no root. Run it while nobody asks for these models. Its NVMe isn't measured.

    \b
    Example:
      kybernate calibrate shop/llama shop/qwen --out costs.json
      kybernate calibrate qwen3-8b --url http://127.0.0.1:8080 --out costs.json
      kybernate simulate trace.csv --models models.csv --costs costs.json
    """
    url, out = options["url"], options["out"]
    if url and ctx.get_parameter_source("socket") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--url is a box's and --socket an agent's: name one of them")
    if out is not None and not os.access(out.parent, os.W_OK):
        # Not found out once all is measured.
        raise click.UsageError(f"--out {out}: {out.parent} is no folder that can be written to")
    with _box(url, options["key"]) if url else _node(options["socket"]) as place:
        measured, nvme = measure(place, seats, rounds)
        if place.without_nvme:
            click.echo(f"{place.without_nvme}: the file says nothing of it", err=True)
    text = write_costs(measured, nvme)
    if out is None:
        click.echo(text)
        return
    out.write_text(text + "\n")
    click.echo(
        f"{out}: park {measured.park:.3g} GB/s, wake {measured.wake:.3g} GB/s, "
        f"{measured.fixed:.3g} s besides" + (f"; {_words(nvme)}" if nvme else "")
    )


@contextlib.contextmanager
def _box(url: str, key: str) -> Iterator[Place]:
    yield BoxLink(url, key)


@contextlib.contextmanager
def _node(socket: str) -> Iterator[Place]:
    with connected(socket, "a box (kybernate serve) has none: name it by --url") as agent:
        yield _Node(agent)


class _Node:
    """The node of this agent: a `Place`."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        status = self._status()
        self.memory = min(gpu.memory_bytes for gpu in status.gpus)
        below = any(tier.name == Tier.NVME for tier in status.tiers)
        self.without_nvme = "" if below else "this node has no NVMe for parked states"

    def park(self, seat: str, tier: Tier) -> tuple[int, Mapping[str, float]]:
        """See `Place`."""
        asked = pb.ParkRequest(uid=self._seat(seat).uid, why="calibrate", tier=tier)
        phases = self._done(self._agent.Park(asked, timeout=CALL_LIMIT))
        return self._seat(seat).held_bytes, phases

    def wake(self, seat: str) -> Mapping[str, float]:
        """See `Place`."""
        asked = pb.WakeRequest(uid=self._seat(seat).uid, why="calibrate")
        return self._done(self._agent.Wake(asked, timeout=CALL_LIMIT))

    def _status(self) -> pb.NodeStatus:
        status: pb.NodeStatus = self._agent.GetStatus(pb.GetStatusRequest(), timeout=CALL_LIMIT)
        return status

    def _seat(self, name: str) -> pb.Seat:
        return find_seat(self._status(), name)

    def _done(self, operation: pb.Operation) -> Mapping[str, float]:
        """Seconds by phase, once it has ended; raises ClickException if it did not succeed."""
        stream = self._agent.WatchOperation(pb.GetOperationRequest(name=operation.name))
        ended = [operation, *stream][-1]
        if ended.state != "succeeded":
            raise click.ClickException(
                f"{ended.kind} of {ended.namespace}/{ended.pod} {ended.state}: {ended.sentence}"
            )
        return {phase.name: phase.seconds for phase in ended.phases}


def _words(nvme: Speed) -> str:
    return (
        f"to NVMe {nvme.write / 1e9:.3g} GB/s, from it {nvme.read / 1e9:.3g} GB/s, "
        f"{nvme.latency:.3g} s besides"
    )
