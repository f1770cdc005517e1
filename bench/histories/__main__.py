"""`python -m bench.histories`: is every history of the registry's calls linearizable?"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.histories.faulty import BY_KILLS, CLOCK_JUMPS, FAULTS, JUMP_MS
from bench.histories.rounds import Rounds
from bench.histories.story import NODES
from bench.report import emit, say, skip
from kybernate.errors import KybernateError
from tests.kit import linearizable, postgresql
from tests.kit.registryserver import Server, certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.histories.rounds import Figures

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A process's death loses nothing there that it would not lose on a disk."""

KILL_EVERY = 8
MOST_FOR_FAULT = 200
PART = 10
"""As many again, divided by this, are made with a clock that jumps, and on PostgreSQL."""

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
        found = bench.real(histories)
        found.count(bench.jumping(histories // PART))
        try:
            with postgresql.running() as server:
                found.count(bench.several(histories // PART, KILL_EVERY, server.dsn))
        except KybernateError as error:
            say(f"no PostgreSQL here, so no histories of it: {error}")
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
            "calls": (float(found.calls), "calls"),
            "lost_answers": (float(found.lost), "calls"),
            "kills": (float(found.kills), "kills"),
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


class Bench:
    """Registries in a folder, one after another."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._tls = certificates(folder / "tls", NODES)

    def real(self, histories: int, kill_every: int = KILL_EVERY) -> Figures:
        """Histories of the registry on SQLite. Raises KybernateError."""
        return self._told(self._on(Kind("sqlite"), histories, kill_every))

    def jumping(self, histories: int, kill_every: int = KILL_EVERY) -> Figures:
        """And where its clock is set now and then. Raises KybernateError."""
        program = ("bench.histories.faulty", CLOCK_JUMPS)
        kind = Kind(CLOCK_JUMPS, program=program, off_ms=2 * JUMP_MS)
        return self._told(self._on(kind, histories, kill_every))

    def several(self, histories: int, kill_every: int, url: str) -> Figures:
        """And of two replicas on the PostgreSQL at `url`. Raises KybernateError."""
        kind = Kind("postgresql", url, replicas=2)
        return self._told(self._on(kind, histories, kill_every))

    def planted(self, fault: str) -> int:
        """Which history tells of this fault; 0 if none of MOST_FOR_FAULT does."""
        kind = Kind(fault, program=("bench.histories.faulty", fault))
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
            Server(self._tls, self._folder / f"{kind.name}{at}.log", url, program=kind.program)
            for at in range(kind.replicas)
        ]
        try:
            for one in servers:
                one.start()
            rounds = Rounds(servers, self._tls, self._seed, kind.off_ms)
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
