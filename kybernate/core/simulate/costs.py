"""What a node's swaps cost, as a file that outlives the measurement. Pure."""

from __future__ import annotations

import json
import math
from typing import Final

from kybernate.core.simulate.world import NVME, Costs
from kybernate.core.tiers.tiers import Speed
from kybernate.errors import ConfigError

VERSION = 1
_LEAST = {"gpu_gb": 1e-3, "wake": 1e-6, "park": 1e-6, "fixed": 0.0}
"""What is measured, and how small it may be."""
_NVME: Final = "nvme"
_LEAST_OF_NVME = {"write": 1e-6, "read": 1e-6, "fixed": 0.0}
_GB = 1e9


def write_costs(costs: Costs, nvme: Speed | None) -> str:
    """What of them is measured, as JSON; `read_costs` reads it. `nvme`: None where it wasn't. Who
    knows no NVMe reads the file, too, and leaves it out: the version is for what such a reader
    would get wrong."""
    figures: dict[str, object] = {name: _told(getattr(costs, name)) for name in _LEAST}
    if nvme is not None:
        rates = {"write": _told(nvme.write / _GB), "read": _told(nvme.read / _GB)}
        figures[_NVME] = {**rates, "fixed": _told(nvme.latency)}
    return json.dumps({"version": VERSION, **figures}, indent=2)


def read_costs(text: str, name: str) -> Costs:
    """What `write_costs` wrote, all else by default, NVMe too where it was not measured. Raises
    ConfigError naming the field."""
    try:
        found = json.loads(text)
    except ValueError as error:
        problem = f"it is no JSON ({error}); write it by kybernate calibrate"
        raise ConfigError(name, problem) from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise ConfigError(f"{name}: version", f"{version!r} is not {VERSION}; calibrate once more")
    gpu_gb, wake, park, fixed = (_number(found, one, name, least) for one, least in _LEAST.items())
    return Costs(gpu_gb, wake, park, fixed, nvme=_nvme(found.get(_NVME), f"{name}: {_NVME}"))


def _nvme(found: object, name: str) -> Speed:
    if found is None:
        return NVME
    if not isinstance(found, dict):
        raise ConfigError(name, f"{found!r} says no speeds; calibrate once more")
    write, read, fixed = (
        _number(found, field, name, least) for field, least in _LEAST_OF_NVME.items()
    )
    return Speed(write=write * _GB, read=read * _GB, latency=fixed)


def _told(figure: float) -> float:
    return float(f"{figure:.4g}")


def _number(found: dict[str, object], field: str, name: str, least: float) -> float:
    value = found.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = math.nan
    if not least <= value < math.inf:
        said = found.get(field)
        raise ConfigError(f"{name}: {field}", f"{said!r} is no number of at least {least:g}")
    return float(value)
