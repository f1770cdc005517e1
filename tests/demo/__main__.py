"""`python -m tests.demo`: bring the cluster up, show six models on four GPUs, judge, clean up."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from kybernate.errors import KybernateError
from tests.cluster.cluster import Cluster

from .models import MODELS
from .screen import Screen
from .show import Show, spec
from .verdict import figures, judge

_STARTED = time.monotonic()


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--keep", is_flag=True, help="Leave the cluster up and say how to talk to it.")
@click.option("--seconds", default=75.0, help="How long requests are sent (s).")
@click.option("--seed", default=7, help="Which model each request of the trace goes to.")
@click.option("--picture", type=click.Path(path_type=Path), help="Save the screen as SVG here.")
def main(*, keep: bool, seconds: float, seed: int, picture: Path | None) -> None:
    """Six models share four simulated GPUs under a real trace's traffic."""
    if keep:
        # The cluster's own cleaning up after a failed start looks here.
        os.environ["KEEP"] = "1"
    console = Console()
    try:
        passed = _demo(console, keep=keep, seconds=seconds, seed=seed, picture=picture)
    except KybernateError as error:
        console.print(f"demo failed: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    sys.exit(0 if passed else 1)


def _demo(console: Console, *, keep: bool, seconds: float, seed: int, picture: Path | None) -> bool:
    cluster = Cluster.up(spec(), _say)
    try:
        show = Show(cluster, _say)
        show.deploy()
        _say(f"playing {seconds:.0f} s of traffic")
        screen = Screen(console, tuple(model.name for model in MODELS))
        outcome = show.play(seconds, seed, screen, picture)
        checks = judge(outcome)
        for name, text in figures(outcome).items():
            click.echo(f"  {name}: {text}")
        for check in checks:
            mark = "✓" if check.passed else "✗"
            text = f"  {mark} {check.name}: {check.detail}"
            click.echo(click.style(text, fg=_colour(check.passed)))
        passed = all(check.passed for check in checks)
        click.echo(click.style("PASSED" if passed else "FAILED", bold=True, fg=_colour(passed)))
        if keep:
            click.echo(_how_to_talk(cluster))
    finally:
        if not keep:
            _say("taking the cluster down")
            cluster.down()
    return passed


def _how_to_talk(cluster: Cluster) -> str:
    message = {"role": "user", "content": "hello"}
    body = json.dumps({"model": MODELS[1].name, "messages": [message]})
    return "\n".join(
        [
            "",
            "It is still up. Try:",
            f"export KUBECONFIG={cluster.kubeconfig} PATH={cluster.kubectl_path.parent}:$PATH",
            "kubectl get gpunodes,pods -o wide",
            f"curl -s {cluster.proxy_url}/v1/models",
            f"curl -s {cluster.proxy_url}/v1/chat/completions -d '{body}'",
            "make down    # takes it all away again",
        ]
    )


def _colour(good: bool) -> str:
    return "green" if good else "red"


def _say(text: str) -> None:
    click.echo(f"[{time.monotonic() - _STARTED:6.1f} s] {text}")


if __name__ == "__main__":
    main()
