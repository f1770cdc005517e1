"""Traces of requests, and the models that they are for. Pure.

A trace is a CSV file with a header; its columns are `at` (seconds, ascending), `model`, and either
`seconds` (how long the request is worked on) or `tokens`. The models' file has `model` and `gb`,
the GPU memory (10^9 bytes) that the model holds while it is alone; `tenant` (whose it is) and
`turn` (`always`: it always wants its GPU, as training does) may be missing.
"""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival: when (s), for which model, and seconds of work.

    `names` and `sizes` (GB) have one entry for each model; `models` are indices into them. So have
    `tenants`, if there are any; `always` are the models that always want their GPU.
    """

    at: Sequence[float]
    models: Sequence[int]
    work: Sequence[float]
    names: Sequence[str]
    sizes: Sequence[float]
    tenants: Sequence[str] = ()
    always: frozenset[int] = frozenset()


def read_tenants(lines: Sequence[str], name: str) -> tuple[list[str], frozenset[int]]:
    """Of the models' file, whose each model is, and which of them always want their GPU. Raises
    ConfigError naming the line and the field."""
    tenants, always = [], set()
    rows = csv.DictReader(lines)
    for number, row in enumerate(rows):
        tenants.append((row.get("tenant") or "").strip())
        turn = (row.get("turn") or "").strip()
        if turn not in ("", "always"):
            where = f"{name}, line {rows.line_num}: turn"
            raise ConfigError(where, f"{turn!r} is none; write always, or leave it empty")
        if turn:
            always.add(number)
    return tenants, frozenset(always)


def read_models(lines: Iterable[str], name: str) -> dict[str, float]:
    """The models' sizes in GB. Raises ConfigError naming the line and the field."""
    rows = csv.DictReader(lines)
    has_columns(rows.fieldnames, ("model", "gb"), name)
    found: dict[str, float] = {}
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        if row["model"] in found:
            raise ConfigError(f"{where}: model", f"{row['model']!r} is there twice; keep one line")
        found[row["model"]] = number_of(row["gb"], f"{where}: gb", least=1e-3)
    if not found:
        raise ConfigError(name, "it names no model; write a line for each: model,gb")
    return found


def read_trace(
    lines: Iterable[str], name: str, sizes: Mapping[str, float], tokens_per_s: float
) -> Trace:
    """The trace. Raises ConfigError naming the line and the field."""
    rows = csv.DictReader(lines)
    fields = rows.fieldnames or ()
    work = "seconds" if "seconds" in fields else "tokens"
    has_columns(fields, ("at", "model", work), name)
    number = {model: n for n, model in enumerate(sizes)}
    pace = 1.0 if work == "seconds" else tokens_per_s
    at: list[float] = []
    models: list[int] = []
    works: list[float] = []
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        when = number_of(row["at"], f"{where}: at")
        if at and when < at[-1]:
            raise ConfigError(f"{where}: at", f"{when:g} is before the line above; sort the trace")
        if row["model"] not in number:
            raise ConfigError(
                f"{where}: model", f"{row['model']!r} has no line in the models' file"
            )
        at.append(when)
        models.append(number[row["model"]])
        works.append(number_of(row[work], f"{where}: {work}") / pace)
    if not at:
        raise ConfigError(name, f"it has no requests; write a line for each: at,model,{work}")
    return Trace(at, models, works, list(sizes), list(sizes.values()))


def has_columns(fields: Sequence[str] | None, wanted: Sequence[str], name: str) -> None:
    """Raises ConfigError naming the columns that are missing."""
    missing = [one for one in wanted if one not in (fields or ())]
    if missing:
        raise ConfigError(
            name,
            f"the column {', '.join(missing)} is missing; its first line must be "
            f"{','.join(wanted)}",
        )


def number_of(text: str | None, what: str, least: float = 0.0, most: float = math.inf) -> float:
    """The number that a cell says. Raises ConfigError if it is none, or out of bounds."""
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not least <= value < math.inf or value > most:
        bounds = f"at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise ConfigError(what, f"{text!r} is no number of {bounds}")
    return value
