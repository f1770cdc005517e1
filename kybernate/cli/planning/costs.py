"""What a node's swaps cost, as options of commands that simulate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from kybernate.cli.options import Number, together
from kybernate.core.simulate.costs import read_costs
from kybernate.core.simulate.world import Costs
from kybernate.errors import ConfigError

_POSITIVE = Number(min=0, min_open=True)
_DEFAULT = Costs()
_GB = 1e9
cost_options = together(
    click.option("--costs", type=click.File("r"), help="What kybernate calibrate wrote of a node."),
    click.option(
        "--gpu-gb",
        type=_POSITIVE,
        default=_DEFAULT.gpu_gb,
        show_default=True,
        help="Memory of a GPU, in GB (10^9 bytes).",
    ),
    click.option(
        "--wake",
        type=_POSITIVE,
        default=_DEFAULT.wake,
        show_default=True,
        help="GB/s into GPU memory.",
    ),
    click.option(
        "--park", type=_POSITIVE, default=_DEFAULT.park, show_default=True, help="GB/s out of it."
    ),
    click.option(
        "--slots",
        type=click.IntRange(1),
        default=_DEFAULT.slots,
        show_default=True,
        help="Requests that a model works on at once.",
    ),
)
"""The options that `costs_of` reads."""
tier_options = together(
    click.option(
        "--ram-gb",
        type=_POSITIVE,
        help="Host memory for parked models, in GB; what it has no room for is on NVMe. Without it "
        "all of them have room.",
    ),
    click.option(
        "--nvme-write",
        type=_POSITIVE,
        default=_DEFAULT.nvme.write / _GB,
        show_default=True,
        help="GB/s from RAM to NVMe.",
    ),
    click.option(
        "--nvme-read",
        type=_POSITIVE,
        default=_DEFAULT.nvme.read / _GB,
        show_default=True,
        help="GB/s from NVMe to RAM.",
    ),
)
"""Of a node whose RAM has a limit; `costs_of` reads them, too."""


def costs_of(ctx: click.Context, options: dict[str, Any]) -> Costs:
    """The file's, if there is one, but what is said on the command line."""
    file = options["costs"]
    try:
        costs = read_costs(file.read(), file.name) if file else _DEFAULT
    except UnicodeDecodeError as error:
        why = "is no text in UTF-8; `kybernate calibrate` writes such files"
        raise ConfigError(file.name, why) from error
    said = {
        name: options[name]
        for name in ("gpu_gb", "wake", "park")
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    nvme = {
        name: options[f"nvme_{name}"] * _GB
        for name in ("write", "read")
        if ctx.get_parameter_source(f"nvme_{name}") is ParameterSource.COMMANDLINE
    }
    return replace(
        costs,
        slots=options["slots"],
        slack=options.get("within", costs.slack),
        ram_gb=options.get("ram_gb") or costs.ram_gb,
        nvme=replace(costs.nvme, **nvme),
        **said,
    )
