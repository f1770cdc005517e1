"""`kybernate groups`: which groups and seats this machine's GPUs make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from kybernate.adapters.nvml import Nvml
from kybernate.core.ledger.topology import groups_of, link_between, seat_ids, worst_link
from kybernate.errors import KybernateError
from kybernate.settings.plugin import DEFAULT_SEATS, parse_seats_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kybernate.types import Gpu, GpuUuid, Group, Link

_GIB = 1 << 30


@click.command("groups")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Profiles and groups, as in the ConfigMap kyb-deviceplugin-config; else the defaults.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(file: Path | None, *, as_json: bool) -> None:
    """Show this machine's GPUs, their links, and the groups and seats they make."""
    try:
        config = parse_seats_config(file.read_text()) if file else DEFAULT_SEATS
        driver = Nvml()
        gpus = sorted(driver.devices(), key=lambda gpu: gpu.index)
        links = driver.links()
        groups = groups_of(config, gpus, links)
    except (KybernateError, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(document(gpus, links, groups), indent=2))
        return
    console = Console()
    for table in tables(gpus, links, groups):
        console.print(table)


def document(
    gpus: Sequence[Gpu], links: Mapping[frozenset[GpuUuid], Link], groups: Sequence[Group]
) -> dict[str, Any]:
    """What `--json` prints."""
    index = {gpu.uuid: gpu.index for gpu in gpus}
    return {
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "product": gpu.product,
                "memoryBytes": gpu.memory,
                "numa": gpu.numa,
                "healthy": gpu.healthy,
            }
            for gpu in gpus
        ],
        "links": [
            {"a": a.uuid, "b": b.uuid, "kind": link_between(links, a.uuid, b.uuid).name.lower()}
            for at, a in enumerate(gpus)
            for b in gpus[at + 1 :]
        ],
        "groups": [
            {
                "name": group.name,
                "resource": group.resource,
                "gpus": list(group.gpus),
                "indices": [index[uuid] for uuid in group.gpus],
                "worstLink": worst_link(links, group.gpus).name.lower(),
                "activeSlots": group.active_slots,
                "seats": list(seat_ids(group)),
            }
            for group in groups
        ],
    }


def tables(
    gpus: Sequence[Gpu], links: Mapping[frozenset[GpuUuid], Link], groups: Sequence[Group]
) -> tuple[Table, Table, Table]:
    """What people see: GPUs, the matrix of links, groups."""
    return _gpu_table(gpus), _link_table(gpus, links), _group_table(gpus, links, groups)


def _gpu_table(gpus: Sequence[Gpu]) -> Table:
    table = Table("GPU", "product", "memory", "NUMA", "health", "UUID", title="GPUs")
    for gpu in gpus:
        table.add_row(
            str(gpu.index),
            gpu.product,
            f"{gpu.memory / _GIB:.0f} GiB",
            "-" if gpu.numa < 0 else str(gpu.numa),
            "healthy" if gpu.healthy else "lost",
            gpu.uuid,
        )
    return table


def _link_table(gpus: Sequence[Gpu], links: Mapping[frozenset[GpuUuid], Link]) -> Table:
    table = Table("", *(str(gpu.index) for gpu in gpus), title="Links")
    for row in gpus:
        cells = [
            "-" if row is gpu else _words(link_between(links, row.uuid, gpu.uuid)) for gpu in gpus
        ]
        table.add_row(str(row.index), *cells)
    return table


def _group_table(
    gpus: Sequence[Gpu], links: Mapping[frozenset[GpuUuid], Link], groups: Sequence[Group]
) -> Table:
    index = {gpu.uuid: str(gpu.index) for gpu in gpus}
    table = Table("group", "resource", "GPUs", "worst link", "seats", "active", title="Groups")
    for group in groups:
        table.add_row(
            group.name,
            group.resource,
            " ".join(index[uuid] for uuid in group.gpus),
            _words(worst_link(links, group.gpus)) if len(group.gpus) > 1 else "-",
            str(group.seats),
            str(group.active_slots),
        )
    return table


def _words(link: Link) -> str:
    return link.name.lower().replace("_", " ")
