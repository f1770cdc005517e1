"""`python -m bench.histories`: is every history of the registry's calls linearizable?"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.histories.faulty import BY_KILLS, FAULTS
from bench.histories.rounds import Rounds
from bench.histories.story import NODES
from bench.report import emit, say, skip
from kybernate.errors import KybernateError
from tests.kit import linearizable
from tests.kit.registryserver import Server, certificates

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.histories.rounds import Figures

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A process's death loses nothing there that it would not lose on a disk."""

KILL_EVERY = 8
MOST_FOR_FAULT = 200
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


class Bench:
    """Registries in a folder, one after another."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._tls = certificates(folder / "tls", NODES)

    def real(self, histories: int, kill_every: int = KILL_EVERY) -> Figures:
        """Histories of the registry; those that are wrong are kept. Raises KybernateError."""
        found = self._on("real", lambda rounds: rounds.run(histories, kill_every))
        for story in found.wrong:
            WRONG.mkdir(parents=True, exist_ok=True)
            path = WRONG / f"{self._seed}-{story.namespace}.json"
            path.write_text(json.dumps(story.calls, indent=1))
            say(f"no order of its calls explains {path}")
        say(f"{found.histories} histories, {len(found.wrong)} wrong, {found.undecided} undecided")
        return found

    def planted(self, fault: str) -> int:
        """Which history tells of this fault; 0 if none of MOST_FOR_FAULT does."""
        every = 1 if fault in BY_KILLS else 0
        found = self._on(
            fault,
            lambda rounds: rounds.run(MOST_FOR_FAULT, every, enough=lambda seen: bool(seen.wrong)),
            *("bench.histories.faulty", fault),
        )
        say(f"{fault}: {'found' if found.wrong else 'NOT found'} by {found.histories} histories")
        return found.histories if found.wrong else 0

    def _on(self, name: str, run: Callable[[Rounds], Figures], *program: str) -> Figures:
        log, url = self._folder / f"{name}.log", f"sqlite:///{self._folder}/{name}.db"
        server = Server(self._tls, log, url, program=program or ("registry",))
        server.start()
        try:
            found = run(Rounds([server], self._tls, self._seed))
        finally:
            server.kill()
        if "Traceback" in server.log:
            raise KybernateError(f"the registry's log has a traceback: {server.log[-2000:]}")
        return found


if __name__ == "__main__":
    main()
