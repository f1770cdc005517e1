"""What a node's swaps cost, as a file that outlives the measurement. Pure."""

from __future__ import annotations

import json
import math

from kybernate.core.simulate.world import Costs
from kybernate.errors import ConfigError

VERSION = 1
_LEAST = {"gpu_gb": 1e-3, "wake": 1e-6, "park": 1e-6, "fixed": 0.0}
"""What is measured, and how small it may be."""


def write_costs(costs: Costs) -> str:
    """What of them is measured, as JSON; `read_costs` reads it."""
    figures = {name: float(f"{getattr(costs, name):.4g}") for name in _LEAST}
    return json.dumps({"version": VERSION, **figures}, indent=2)


def read_costs(text: str, name: str) -> Costs:
    """What `write_costs` wrote, all else by default. Raises ConfigError naming the field."""
    try:
        found = json.loads(text)
    except ValueError as error:
        problem = f"it is no JSON ({error}); write it by kybernate calibrate"
        raise ConfigError(name, problem) from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise ConfigError(f"{name}: version", f"{version!r} is not {VERSION}; calibrate once more")
    gpu_gb, wake, park, fixed = (_number(found, field, name) for field in _LEAST)
    return Costs(gpu_gb, wake, park, fixed)


def _number(found: dict[str, object], field: str, name: str) -> float:
    value, least = found.get(field), _LEAST[field]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = math.nan
    if not least <= value < math.inf:
        said = found.get(field)
        raise ConfigError(f"{name}: {field}", f"{said!r} is no number of at least {least:g}")
    return float(value)
