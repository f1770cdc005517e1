"""`python -m tests.cluster up|down|status|check|…`."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kybernate.errors import KybernateError
from tests.cluster.fetched import binaries, prefix
from tests.cluster.fetched.images import build
from tests.cluster.start import preflight

from .cluster import Cluster, take_down
from .layout import Layout, work_root
from .spec import ALL_SERVICES, ClusterSpec, GpuSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STARTED = time.monotonic()


def _say(line: str) -> None:
    click.echo(f"[{time.monotonic() - _STARTED:6.1f} s] {line}")


class _Group(click.Group):
    """Ends our own errors in one clear message instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KybernateError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The one-machine cluster: a real control plane and kubelets, simulated GPUs."""


@main.command()
@click.option("--node", "nodes", multiple=True, default=("n1", "n2"), help="Node; repeatable.")
@click.option("--gpus", default=4, show_default=True, help="GPUs per node.")
@click.option("--subnet", default="10.88.0.0/16", show_default=True, help="/16 of the pods.")
@click.option("--port-base", type=int, help="First of ten local ports (default: any free).")
@click.option("--services", default=",".join(sorted(ALL_SERVICES)), show_default=True)
@click.option("--images", default="busybox,toy", show_default=True)
@click.option("--control-plane-only", is_flag=True, help="etcd, API server, controllers.")
@click.option("--node-pods", is_flag=True, help="Agent and plugin as DaemonSets.")
def up(  # noqa: PLR0917 - one parameter per option; click passes them by name
    nodes: tuple[str, ...],
    gpus: int,
    subnet: str,
    port_base: int | None,
    services: str,
    images: str,
    control_plane_only: bool,
    node_pods: bool,
) -> None:
    """Bring a fresh cluster up and say how to talk to it."""
    spec = ClusterSpec(
        nodes=nodes,
        gpus=GpuSpec(count=gpus),
        subnet=subnet,
        port_base=port_base,
        services=frozenset(name for name in services.split(",") if name),
        images=tuple(name for name in images.split(",") if name),
        control_plane_only=control_plane_only,
        node_pods=node_pods,
    )
    cluster = Cluster.up(spec, _say)
    click.echo(how_to_talk(cluster))


def how_to_talk(cluster: Cluster) -> str:
    """Lines to copy into a shell."""
    lines = [
        f"export KUBECONFIG={cluster.kubeconfig} PATH={cluster.kubectl_path.parent}:$PATH",
        "kubectl get nodes,pods -A -o wide",
    ]
    if "proxy" in cluster.spec.running_services:
        lines.append(f"curl -s {cluster.proxy_url}/v1/models")
    lines += [
        "python -m tests.cluster status        # processes, PIDs, restarts, memory",
        f"tail -f {cluster.layout.logs}/apiserver.log",
        "make down                             # takes it all away again",
    ]
    return "\n".join(lines)


@main.command()
@click.option("--name", help="Only this cluster; without it, every cluster below $KYB_WORK.")
def down(name: str | None) -> None:
    """End every process and remove every mount, namespace, bridge and cgroup."""
    folders = [folder for folder in sorted(clusters()) if name in {None, folder.name}]
    gone = [folder.name for folder in folders if take_down(Layout(folder))]
    _say(f"down: {', '.join(gone)}" if gone else "nothing was up")


def clusters() -> list[Path]:
    """The folders of clusters that run, or of which something is left."""
    return [file.parent for file in work_root().glob("*/cluster.json")]


@main.command()
def status() -> None:
    """Show the processes of the running cluster."""
    cluster = Cluster.attach()
    for row in cluster.processes():
        age = time.time() - row["started_at"]
        click.echo(
            f"{row['name']:<20} {row['state']:<10} pid {row['pid'] or '-':<8} "
            f"{age:7.0f} s  starts {row['starts']:<3} {row['rss_mib']:>5} MiB  {row['log']}"
        )


@main.command()
@click.option("--control-plane-only", is_flag=True)
@click.option("--before-build", is_flag=True, help="Take what `make native` builds as there.")
def check(control_plane_only: bool, before_build: bool) -> None:
    """List what this machine lacks, and what mends it."""
    machine = preflight.this_machine()
    if before_build:
        machine = replace(machine, kyb_init=True)
    missing = preflight.check(ClusterSpec(control_plane_only=control_plane_only), machine)
    if missing:
        raise click.ClickException(preflight.report(missing))
    click.echo("nothing is missing")


@main.command("build")
def build_all() -> None:
    """Build and fetch all that a cluster needs, and start nothing."""
    binaries.ensure(binaries.ALL, _say)
    prefix.ensure(_say)
    build(["pause", *ClusterSpec().images], _say)
    _say("everything is built")


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(arguments: tuple[str, ...]) -> None:
    """kubectl against the running cluster, as administrator."""
    cluster = Cluster.attach()
    path = str(cluster.kubectl_path)
    sys.stdout.flush()
    access = [f"--kubeconfig={cluster.kubeconfig}", f"--cache-dir={cluster.layout.kubectl_cache}"]
    os.execv(path, [path, *access, *arguments])  # noqa: S606 - the user's own command


def _verb(name: str, text: str, act: Callable[[Cluster, str], None]) -> None:
    @main.command(name, help=text)
    @click.argument("process")
    def run(process: str) -> None:
        act(Cluster.attach(), process)


_verb("start", "Start a stopped process.", lambda cluster, name: cluster.process(name).start())
_verb("stop", "Stop a process until `start`.", lambda cluster, name: cluster.process(name).stop())
_verb("restart", "Stop and start a process.", lambda cluster, name: cluster.process(name).restart())
_verb(
    "kill",
    "SIGKILL a process; the supervisor starts it again.",
    lambda cluster, name: cluster.process(name).signal(signal.SIGKILL),
)


if __name__ == "__main__":
    main()
