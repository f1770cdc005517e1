"""The proxy without a cluster: its agent's book of leases is the true one, its turns are a clock's.

By default: what it adds to a request at 1, 16 and 64 connections, and events per second of streams,
against the same server asked directly, and with --peer against llama-swap before the same server,
in turn. With --replicas: so many proxies, two models that take turns, and proxies that are killed;
it fails if an answer is lost that was not on a killed one, or a model is asked without its turn.
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import click

from bench.proxy import kills as killing
from bench.proxy import speed
from bench.report import emit
from kybernate.adapters.pki import Folder, Validity


@click.command()
@click.option("--replicas", default=0, help="Proxies, of which some are killed.")
@click.option("--requests", default=10_000, show_default=True, help="With --replicas.")
@click.option("--kills", default=20, show_default=True, help="With --replicas.")
@click.option("--peer", type=click.Path(exists=True), help="llama-swap's program.")
@click.option("--rounds", default=5, show_default=True, help="Of each measurement, in turn.")
@click.option("--seconds", default=1.5, show_default=True, help="Of one measurement.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(  # noqa: PLR0913 - one for each option
    replicas: int,
    requests: int,
    kills: int,
    peer: str | None,
    rounds: int,
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """Measure the proxy."""
    with tempfile.TemporaryDirectory(prefix="kyb-bench-proxy-") as name:
        folder = Path(name)
        Folder(folder / "tls").init(["n1"], Validity(), datetime.now(UTC))
        if replicas:
            work = killing.measure(folder, folder / "tls", replicas, requests, kills)
            baseline = {"name": "answers lost that were not on a killed proxy", "lost": 0}
            emit("proxy --replicas", asyncio.run(work), baseline, as_json=as_json)
            return
        found = asyncio.run(speed.measure(folder, folder / "tls", peer, rounds, seconds))
        emit("proxy", *found, as_json=as_json)


if __name__ == "__main__":
    main()
