"""`kybernate doctor`: what is right and what is wrong with this machine as a GPU node."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from kybernate import keys
from kybernate.adapters.criu import find_criu, lacking
from kybernate.adapters.files.diskspeed import measure
from kybernate.adapters.kernel.memory import KernelMemory
from kybernate.adapters.lookabout import LookAbout
from kybernate.adapters.nvml.gpumodes import read_driver
from kybernate.cli.cluster.link import cluster_options, link_to
from kybernate.cli.output import document_option, json_option, text_of
from kybernate.core.doctor.cluster import examine_cluster
from kybernate.core.doctor.doctor import Level, examine, sound
from kybernate.core.doctor.nodefacts import Facts, KubeletFacts, RuntimeFacts, Unseen
from kybernate.core.doctor.offload import FEATURES, OffloadFacts, Speed, examine_offload
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.core.doctor.doctor import Finding
    from kybernate.core.seat.budget import HostMemory

_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
_CRI_DEADLINE = 5.0
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}

_HELP = """Examine this machine as a GPU node, or a cluster, and say what to do about each problem.

With --cluster, which `kubectl kyb doctor` means by itself, the API server is asked, from anywhere:
services, nodes, and whether somebody else hands out the same GPUs. Else this machine is examined:
it reads and changes nothing, except that as root it lets CRIU, if there is one, dump and recreate
a process of its own, and with --nvme-dir writes a file of 256 MiB there, which it removes. Run it
on the node, as root: without root it says what it could not see. With --kubeconfig and --node it
also reads the Node object.

\b
  ok    as it should be
  warn  seats work, and something is lost: a tier, time, or certainty
  fail  seats can't work here until it is mended

Exit status 1 if anything failed, else 0. docs/reference/node/doctor.md has a page on every finding.
"""


@click.command("doctor", help=_HELP)
@click.option(
    "--cluster/--machine",
    "of_cluster",
    default=None,
    help="The cluster, or this machine; kubectl kyb: the cluster, else the machine.",
)
@document_option
@json_option
@click.option(
    "--kubelet-dir",
    default="/var/lib/kubelet",
    show_default=True,
    help="The kubelet's root folder.",
)
@click.option(
    "--cri-socket",
    default="/run/containerd/containerd.sock",
    show_default=True,
    help="The container runtime's socket.",
)
@click.option(
    "--state-dir", default="/var/lib/kyb", show_default=True, help="The agent's state_dir."
)
@click.option(
    "--park-bytes", default=0, help="The agent's park_bytes; 0: 90 % of the host's memory."
)
@click.option("--criu", type=click.Path(path_type=Path), help="A criu that is not in PATH.")
@click.option(
    "--nvme-dir",
    type=click.Path(path_type=Path),
    help="Also look whether seats can leave RAM, with their states in this folder.",
)
@click.option("--node", default="", help="The node's name in Kubernetes, to read the Node object.")
@cluster_options(namespaced=False)
@click.pass_context
def command(ctx: click.Context, /, *, of_cluster: bool | None, **options: Any) -> None:
    """See _HELP."""
    if of_cluster is None:
        of_cluster = (ctx.find_root().info_name or "").startswith("kubectl")
    findings = _of_cluster(options) if of_cluster else _of_machine(options)
    form = "json" if options["as_json"] else options["output"]
    if form == "table":
        show(findings)
    else:
        # Levels are words, which YAML would not know for such.
        click.echo(text_of(json.loads(json.dumps(document(findings))), form), nl=False)
    sys.exit(0 if sound(findings) else 1)


def _of_cluster(options: dict[str, Any]) -> tuple[Finding, ...]:
    from kybernate.cli.cluster.examine import gather as look_at  # noqa: PLC0415 - not on nodes

    return examine_cluster(look_at(link_to(options).api))


def _of_machine(options: dict[str, Any]) -> tuple[Finding, ...]:
    look = LookAbout()
    facts = gather(look, options)
    findings = examine(facts)
    if options["nvme_dir"]:
        findings += examine_offload(gather_offload(look, facts, options["nvme_dir"].absolute()))
    return findings


def gather(look: LookAbout, options: dict[str, Any]) -> Facts:
    """All facts of this machine; each look has its own deadline."""
    runtime = _runtime(Path(options["cri_socket"]))
    folders = runtime.cdi_dirs if isinstance(runtime, RuntimeFacts) else ()
    return Facts(
        root=look.is_root(),
        machine=look.machine(),
        driver=read_driver(mps=look.mps()),
        runtime=runtime,
        vendor_specs=look.vendor_specs(folders or _CDI_DIRS),
        kubelet=_kubelet(look, options),
        cgroup=look.cgroup(),
        memory=_memory(),
        park_bytes=options["park_bytes"],
        disk=look.disk(Path(options["state_dir"])),
        criu=find_criu(options["criu"]),
        io_uring=look.io_uring(),
        lasting=look.lasting(),
    )


def gather_offload(look: LookAbout, facts: Facts, folder: Path) -> OffloadFacts:
    """What offloading needs, with the states in this folder."""
    gpus = () if isinstance(facts.driver, Unseen) else facts.driver.gpus
    return OffloadFacts(
        bounds=look.bounds(),
        lacking=lacking(facts.criu, FEATURES),
        disk=look.disk(folder),
        speed=_speed(look, folder),
        largest=max((gpu.memory for gpu in gpus), default=0),
    )


def _speed(look: LookAbout, folder: Path) -> Speed | Unseen:
    try:
        return Speed(*measure(look.existing(folder)))
    except OSError as error:
        return Unseen(f"{folder} can't be written to: {error.strerror}")


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """What --json prints."""
    return {"sound": sound(findings), "findings": [asdict(finding) for finding in findings]}


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """What people see."""
    console = console or Console()
    table = Table("", "check")
    for title in ("seen", "what to do"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        colour = _COLOURS[finding.level]
        table.add_row(
            f"[{colour}]{finding.level}[/]", finding.check, _plain(finding.seen), _plain(finding.do)
        )
    console.print(table)
    count = {level: sum(f.level is level for f in findings) for level in Level}
    console.print(f"{count[Level.OK]} ok, {count[Level.WARN]} warn, {count[Level.FAIL]} fail")


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def _memory() -> HostMemory | Unseen:
    try:
        return KernelMemory().host()
    except (OSError, KeyError) as error:
        return Unseen(f"the host's memory can't be read: {error}")


def _runtime(socket: Path) -> RuntimeFacts | Unseen:
    if not os.access(socket, os.W_OK):
        return Unseen(f"there is no runtime's socket at {socket} that this user may open")
    try:
        return asyncio.run(_ask_runtime(socket))
    except (KybernateError, TimeoutError) as error:
        return Unseen(str(error) or f"the container runtime at {socket} gave no answer in time")


async def _ask_runtime(socket: Path) -> RuntimeFacts:
    from kybernate.adapters.container.cri import CriImages  # noqa: PLC0415 - slow, and often not needed

    cri = CriImages(socket)
    try:
        async with asyncio.timeout(_CRI_DEADLINE):
            on, folders = await cri.cdi() or (None, ())
            return RuntimeFacts(await cri.version(), on, folders)
    finally:
        await cri.close()


def _kubelet(look: LookAbout, options: dict[str, Any]) -> KubeletFacts | Unseen:
    kubelet = look.kubelet(Path(options["kubelet_dir"]))
    if isinstance(kubelet, Unseen) or not (options["kubeconfig"] and options["node"]):
        return kubelet
    from kybernate.adapters.k8s import Api  # noqa: PLC0415 - slow, and seldom needed

    try:
        api = Api(options["kubeconfig"], "kyb-doctor")
        node = api.get(f"/api/v1/nodes/{options['node']}", timeout=_CRI_DEADLINE)
    except KybernateError as error:
        raise click.ClickException(f"--kubeconfig: {error}") from error
    status = node["status"]
    return replace(
        kubelet,
        version=f"kubelet {status['nodeInfo']['kubeletVersion']}",
        vendor_gpus=int(status.get("allocatable", {}).get(keys.VENDOR_RESOURCE, 0)),
    )
