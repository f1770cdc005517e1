"""Workloads that might share GPUs, as a CSV file tells of them, and a day of their requests. Pure.

Its columns are `workload`, `namespace`, `gpus` (that it uses together), `vram_gib` (of each of
them), `requests_per_hour` (one number, or 24 with blanks between: one for each hour of a day) and
`p99_s` (within so many seconds its requests should begin, 99 of 100); `seconds` (that a request is
worked on) and `owner` (Deployment/NAME, say, of which several lines may be pods) may be missing.
"""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Final, Protocol

from kybernate.core.simulate.trace import Trace, has_columns, number_of
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

HOURS: Final = 24
GB: Final = 1.073741824
"""Of a GiB."""
_NEEDED = ("workload", "namespace", "gpus", "vram_gib", "requests_per_hour", "p99_s")
_MORE = ("seconds", "owner")
_MOST = 1e6
"""Requests an hour and seconds above this are slips."""


class Chance(Protocol):
    """What draws by chance; `random.Random` is one."""

    def expovariate(self, lambd: float, /) -> float:
        """A time that is exponentially distributed, `lambd` of them in one on average."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one pod needs, and how it is asked: `gb` (of 10^9 bytes) on each of its `gpus`,
    `by_hour` requests in each hour of a day, `p99`, `seconds` and `owner` as in the file, and
    `where` it is in the file."""

    name: str
    namespace: str
    gpus: int
    gb: float
    by_hour: tuple[float, ...]
    p99: float
    seconds: float
    where: str = ""
    owner: str = ""

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    def busy(self, hour: int) -> float:
        """The share of that hour in which a request is worked on, were they never to wait."""
        return 1 - math.exp(-self.by_hour[hour] * self.seconds / 3600)

    @property
    def busiest(self) -> int:
        """The hour with most requests, the first of several."""
        return max(range(HOURS), key=lambda hour: self.by_hour[hour])


def read_workloads(lines: Iterable[str], name: str, seconds: float) -> list[Workload]:
    """What the file says, `seconds` by default. Raises ConfigError naming row and column."""
    rows = csv.DictReader(lines, restkey="")
    _known(rows.fieldnames, name)
    found: dict[str, Workload] = {}
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        if "" in row:
            raise ConfigError(where, "it has more cells than the first line has columns")
        one = _workload(row, where, seconds)
        if one.key in found:
            raise ConfigError(f"{where}: workload", f"{one.key} is there twice; keep one line")
        found[one.key] = one
    if not found:
        raise ConfigError(name, f"it names no workload; write a line for each: {','.join(_NEEDED)}")
    return list(found.values())


def write_workloads(workloads: Sequence[Workload]) -> str:
    """A file that `read_workloads` reads; without owners it is of a form that older versions read,
    too."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    owned = any(one.owner for one in workloads)
    rows.writerow((*_NEEDED, *(_MORE if owned else _MORE[:1])))
    for one in workloads:
        rates = " ".join(f"{rate:.4g}" for rate in one.by_hour)
        gib, seconds, limit = f"{one.gb / GB:.4g}", f"{one.seconds:.4g}", f"{one.p99:g}"
        row = (one.name, one.namespace, one.gpus, gib, rates, limit, seconds)
        rows.writerow((*row, one.owner) if owned else row)
    return text.getvalue()


def day(workloads: Sequence[Workload], chance: Callable[[str], Chance]) -> Trace:
    """A day of requests that come by chance, in each hour as many as the workloads say on average.
    `chance` of a workload's key is its own, so that what comes for it doesn't depend on others."""
    found = []
    for number, one in enumerate(workloads):
        found += [(at, number, work) for at, work in _requests(one, chance(one.key))]
    found.sort()
    at, models, work = zip(*found, strict=True) if found else ((), (), ())
    return Trace(at, models, work, [one.key for one in workloads], [one.gb for one in workloads])


def _requests(one: Workload, chance: Chance) -> list[tuple[float, float]]:
    found = []
    for hour, rate in enumerate(one.by_hour):
        at = 0.0
        while rate and (at := at + chance.expovariate(rate)) < 1:
            found.append(((hour + at) * 3600, chance.expovariate(1 / one.seconds)))
    return found


def _known(fields: Sequence[str] | None, name: str) -> None:
    has_columns(fields, _NEEDED, name)
    names = list(fields or ())
    strange = [one for one in names if one not in (*_NEEDED, *_MORE) or names.count(one) > 1]
    if strange:
        known = ", ".join((*_NEEDED, *_MORE))
        raise ConfigError(
            f"{name}, line 1: {strange[0] or 'a column'}",
            f"it is none, or twice; there are {known}",
        )


def _workload(row: dict[str, str | None], where: str, seconds: float) -> Workload:
    def value(column: str, least: float) -> float:
        return number_of(row[column], f"{where}: {column}", least, _MOST)

    for column in ("workload", "namespace"):
        if not (row[column] or "").strip():
            raise ConfigError(f"{where}: {column}", "it is empty; name it")
    gpus = value("gpus", 1)
    if gpus % 1:
        raise ConfigError(f"{where}: gpus", f"{gpus:g} is no whole number")
    return Workload(
        name=(row["workload"] or "").strip(),
        namespace=(row["namespace"] or "").strip(),
        gpus=int(gpus),
        gb=value("vram_gib", 0.01) * GB,
        by_hour=_by_hour(row["requests_per_hour"], f"{where}: requests_per_hour"),
        p99=value("p99_s", 0),
        seconds=value("seconds", 0.001) if row.get("seconds") else seconds,
        where=where,
        owner=(row.get("owner") or "").strip(),
    )


def _by_hour(text: str | None, what: str) -> tuple[float, ...]:
    rates = tuple(number_of(one, what, 0, _MOST) for one in (text or "").split())
    if len(rates) not in (1, HOURS):
        said = f"it has {len(rates)} numbers"
        raise ConfigError(what, f"{said}; write one, or {HOURS} with blanks between")
    return rates if len(rates) == HOURS else rates * HOURS
