"""Registries that are tried, and the figures of their histories."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.report import say
from bench.saved.histories import apart
from bench.saved.histories.faulty import BY_KILLS, CLOCK_JUMPS, CLOCK_RATES, JUMP_MS
from bench.saved.histories.rounds import Figures, Rounds
from bench.saved.histories.story import NODES
from kybernate.errors import KybernateError
from tests.kit.breaks import faketime
from tests.kit.servers import postgresql
from tests.kit.servers.registryserver import Server, certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A process's death loses nothing there that it would not lose on a disk."""

KILL_EVERY = 8
MOST_FOR_FAULT = 200
BELOW_FAKETIME = ("bench.saved.histories.faulty", CLOCK_RATES)
SKEW = 0.25
SKEW_MS = 30_000
"""How far such a clock gets at most while one process of the registry lives."""

WRONG = Path("build/histories")


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
