"""`python -m bench.saved.histories`: is every history of the registry's calls linearizable?"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from bench.report import emit, say, skip
from bench.saved.histories import apart
from bench.saved.histories.faulty import BY_KILLS, CLOCK_JUMPS, CLOCK_RATES, FAULTS, JUMP_MS
from bench.saved.histories.rounds import Figures, Rounds
from bench.saved.histories.story import NODES
from kybernate.errors import KybernateError
from tests.kit.breaks import faketime, linearizable
from tests.kit.servers import postgresql
from tests.kit.servers.registryserver import Server, certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A process's death loses nothing there that it would not lose on a disk."""

KILL_EVERY = 8
MOST_FOR_FAULT = 200
PART = 10
"""As many again, divided by this, are made with a clock that jumps, and on PostgreSQL."""

BELOW_FAKETIME = ("bench.saved.histories.faulty", CLOCK_RATES)
SKEW = 0.25
SKEW_MS = 30_000
"""How far such a clock gets at most while one process of the registry lives."""

WRONG = Path("build/histories")


@click.command()
@click.option("--histories", default=2000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(histories: int, seed: int, as_json: bool) -> None:
    """Histories of the registry, judged; then of registries with mistakes, until each is found."""
    if reason := linearizable.why_not():
        skip("histories", reason)
        return
    linearizable.ensure(say)
    with tempfile.TemporaryDirectory(prefix="kyb-histories-", dir=MEMORY) as name:
        bench = Bench(Path(name), seed)
        began = time.monotonic()
        kinds = bench.kinds(histories, histories // PART)
        found = Figures()
        for figures in kinds.values():
            found.count(figures)
        took = time.monotonic() - began
        first = {fault: bench.planted(fault) for fault in FAULTS}
    emit(
        "histories",
        {
            "histories": (float(found.histories), "histories"),
            "violations": (float(len(found.wrong)), "histories"),
            "undecided": (float(found.undecided), "histories"),
            "planted": (float(len(first)), "faults"),
            "planted_found": (float(sum(at > 0 for at in first.values())), "faults"),
            **{f"of_{name}": (float(one.histories), "histories") for name, one in kinds.items()},
            "calls": (float(found.calls), "calls"),
            "lost_answers": (float(found.lost), "calls"),
            "kills": (float(found.kills), "kills"),
            "cuts": (float(found.cuts), "cuts"),
            "history_ms": (took * 1000 / max(1, found.histories), "ms"),
        },
        {"name": "histories until each planted fault was found (0: never)", **first},
        as_json=as_json,
    )
    if found.wrong or not all(first.values()):
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class Kind:
    """A registry to be tried. `url`: of its database, if it isn't SQLite; `off_ms`: as a Story
    has it; `name` is for its files."""

    name: str
    url: str = ""
    replicas: int = 1
    program: Sequence[str] = ("registry",)
    off_ms: int = 0
    rates: Sequence[float] = ()
    """Of the replicas' clocks, if they are wrong."""


class Bench:
    """Registries in a folder, one after another."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._tls = certificates(folder / "tls", NODES)

    def kinds(self, histories: int, fewer: int) -> dict[str, Figures]:
        """Of each kind so many, where it can be had here."""
        found = {"sqlite": self.real(histories), "clock_jumps": self.jumping(fewer)}
        makers: dict[str, Callable[[], Figures]] = {
            "clock_rates": lambda: self.skewed(fewer),
            "partitions": lambda: self._told(apart.made("sqlite", fewer, self._seed)),
            "postgresql_partitions": lambda: self._told(
                apart.made("postgresql", fewer, self._seed)
            ),
            "postgresql": lambda: self._on_postgresql(fewer, self.several),
            "postgresql_clock_rates": lambda: self._on_postgresql(fewer, self.skewed_replicas),
        }
        for name, make in makers.items():
            try:
                found[name] = make()
            except KybernateError as error:
                say(f"no histories of {name}: {error}")
        return found

    def _on_postgresql(self, histories: int, make: Callable[[int, int, str], Figures]) -> Figures:
        with postgresql.running() as server:
            return make(histories, KILL_EVERY, server.dsn)

    def real(self, histories: int, kill_every: int = KILL_EVERY) -> Figures:
        """Histories of the registry on SQLite. Raises KybernateError."""
        return self._told(self._on(Kind("sqlite"), histories, kill_every))

    def jumping(self, histories: int, kill_every: int = KILL_EVERY) -> Figures:
        """And where its clock is set now and then. Raises KybernateError."""
        program = ("bench.saved.histories.faulty", CLOCK_JUMPS)
        kind = Kind(CLOCK_JUMPS, program=program, off_ms=2 * JUMP_MS)
        return self._told(self._on(kind, histories, kill_every))

    def several(self, histories: int, kill_every: int, url: str) -> Figures:
        """And of two replicas on the PostgreSQL at `url`. Raises KybernateError."""
        kind = Kind("postgresql", url, replicas=2)
        return self._told(self._on(kind, histories, kill_every))

    def skewed(self, histories: int, kill_every: int = KILL_EVERY) -> Figures:
        """And of a registry whose clock runs too fast, which a kill sets right for a moment.
        Raises KybernateError."""
        kind = Kind("skewed", program=BELOW_FAKETIME, off_ms=SKEW_MS, rates=(1 + SKEW,))
        return self._told(self._on(kind, histories, kill_every))

    def skewed_replicas(self, histories: int, kill_every: int, url: str) -> Figures:
        """And of replicas whose clocks run apart: they go by that of PostgreSQL, exactly."""
        rates = (1 + SKEW, 1 - SKEW)
        kind = Kind("skewed-postgresql", url, 2, BELOW_FAKETIME, rates=rates)
        return self._told(self._on(kind, histories, kill_every))

    def cut(self, network: apart.Network, histories: int, url: str = "") -> Figures:
        """And where clients, replicas and PostgreSQL (if there is a `url`) are cut off from each
        other, for a moment and one way. Raises KybernateError."""
        urls = [apart.host_of(url, at) for at in range(2)] if url else []
        places = [one for _, one in urls] or [f"sqlite:///{self._folder}/apart.db"]
        servers = [
            Server(self._tls, self._folder / f"apart{at}.log", place)
            for at, place in enumerate(places)
        ]
        port = urlsplit(url).port or 0
        ways = apart.ways_of(servers, [host for host, _ in urls], port)
        trouble = apart.Trouble(network, ways, self._seed)
        try:
            for one in servers:
                one.start()
            rounds = Rounds(servers, self._tls, self._seed, limit_s=apart.PATIENCE_S)
            rounds.settle()
            with trouble.lasting():
                found = rounds.run(histories, 0)
        finally:
            for one in servers:
                one.kill()
        found.cuts = trouble.cuts
        return found

    def planted(self, fault: str) -> int:
        """Which history tells of this fault; 0 if none of MOST_FOR_FAULT does."""
        kind = Kind(fault, program=("bench.saved.histories.faulty", fault))
        every = 1 if fault in BY_KILLS else 0
        found = self._on(kind, MOST_FOR_FAULT, every, lambda seen: bool(seen.wrong))
        say(f"{fault}: {'found' if found.wrong else 'NOT found'} by {found.histories} histories")
        return found.histories if found.wrong else 0

    def _on(
        self,
        kind: Kind,
        histories: int,
        kill_every: int,
        enough: Callable[[Figures], bool] = lambda _: False,
    ) -> Figures:
        url = kind.url or f"sqlite:///{self._folder}/{kind.name}.db"
        servers = [
            Server(
                self._tls,
                self._folder / f"{kind.name}{at}.log",
                url,
                program=kind.program,
                environ=faketime.environ(kind.rates[at]) if kind.rates else None,
            )
            for at in range(kind.replicas)
        ]
        try:
            for one in servers:
                one.start()
            rounds = Rounds(servers, self._tls, self._seed, kind.off_ms)
            rounds.settle()
            found = rounds.run(histories, kill_every, enough)
        finally:
            for one in servers:
                one.kill()
        for one in servers:
            if "Traceback" in one.log:
                raise KybernateError(f"the registry's log has a traceback: {one.log[-2000:]}")
        return found

    def _told(self, found: Figures) -> Figures:
        """Say it, and keep the histories that are wrong."""
        for story in found.wrong:
            WRONG.mkdir(parents=True, exist_ok=True)
            path = WRONG / f"{self._seed}-{story.namespace}.json"
            path.write_text(json.dumps(story.calls, indent=1))
            say(f"no order of its calls explains {path}")
        say(f"{found.histories} histories, {len(found.wrong)} wrong, {found.undecided} undecided")
        return found


if __name__ == "__main__":
    main()
