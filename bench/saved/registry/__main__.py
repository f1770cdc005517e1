"""`python -m bench.saved.registry`: rebuild, lists and look-ups, and replicas killed under load."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from sqlalchemy import func, select, text

from bench.report import emit, percentile, say
from bench.saved.registry.asked import Asker, Times
from bench.saved.registry.manifests import KEYS, copies, make, write
from bench.saved.registry.storm import Storm
from kybernate.adapters.registry.describe import describe
from kybernate.checkpoint.catalogue import manifests
from kybernate.checkpoint.places import open_place
from kybernate.errors import KybernateError
from registry.artifacts import Artifacts
from registry.database import Database, insert_new
from registry.pods import Pods
from registry.rebuild import rebuild
from registry.schema import ARTIFACTS, COPIES
from tests.kit.servers import postgresql
from tests.kit.servers.registryserver import Server, certificates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.report import Metrics
    from bench.saved.registry.manifests import Source

NODES = ("n1", "n2")
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Removing 400,000 files and folders from a disk takes minutes."""
PARTS = 2
"""Places of which PostgreSQL is rebuilt; what the others have is copied."""


@click.command()
@click.option("--artifacts", default=100_000, show_default=True)
@click.option("--calls", default=1000, show_default=True, help="Lists, and look-ups, of each.")
@click.option("--kills", default=6, show_default=True, help="Replicas to kill, on each database.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(artifacts: int, calls: int, kills: int, as_json: bool) -> None:
    """Rebuild a database, ask it, and kill replicas under load; on SQLite and on PostgreSQL."""
    with (
        tempfile.TemporaryDirectory(prefix="kyb-registry-", dir="/var/tmp") as name,
        tempfile.TemporaryDirectory(prefix="kyb-registry-", dir=MEMORY) as places,
    ):
        bench = Bench(Path(name), Path(places), (artifacts, calls, kills))
        metrics = bench.on("", f"sqlite:///{name}/registry.db", replicas=1)
        try:
            with postgresql.running(durable=True) as server:
                metrics |= bench.on("postgresql_", server.dsn, replicas=2)
        except KybernateError as error:
            say(f"no PostgreSQL here, so nothing of it is measured: {error}")
        emit("registry", metrics, {"name": "the bare SQL queries", **bench.bare}, as_json=as_json)


class Bench:
    """The same on each database."""

    def __init__(self, folder: Path, places: Path, counts: tuple[int, int, int]) -> None:
        """`counts`: artifacts, calls, kills."""
        self._folder = folder
        self._count, self._calls, self._kills = counts
        self._tls = certificates(folder / "tls", NODES)
        self.bare: dict[str, float] = {}
        say(f"writing the manifests of {self._count} artifacts")
        self._sources = write(places, self._count)

    def on(self, prefix: str, url: str, replicas: int) -> Metrics:
        """All figures, their names beginning with `prefix`."""
        database = Database(url)
        database.prepare()
        if prefix:
            found = self._rebuilt(database, self._sources[:PARTS])
            self._copied(database)
        else:
            found = self._rebuilt(database, self._sources)
            self._first = database
        found["rebuild_missing"] = (float(self._missing(database)), "rows")
        Pods(database, 600).settle_all()
        # Some copies are lost: rare states are listed as well.
        with database.write() as connection:
            lost = "UPDATE copies SET state = 'missing' WHERE artifact LIKE '%77'"
            connection.execute(text(lost))
        servers = [
            Server(self._tls, self._folder / f"{prefix}{number}.log", url)
            for number in range(replicas)
        ]
        try:
            for server in servers:
                server.start()
            times = Asker(servers[0], self._count).ask(database, self._calls, self._calls)
            say(", ".join(f"{name} {value:.1f}" for name, (value, _) in _times(times).items()))
            storm = Storm(servers)
            say(f"killing {replicas} replica(s) in turn, {self._kills} times")
            storm.run(workers=4, kills=self._kills, between_s=2.0)
        finally:
            for server in servers:
                server.kill()
        say(f"{dict(+storm.wrong)} wrong; {storm.again} calls were made again")
        self.bare |= _bare(prefix, times)
        found |= _times(times) | {
            "wrong_answers": (float(sum(storm.wrong.values()) + times.wrong), "answers"),
            "kills": (float(storm.kills), "kills"),
            "storm_calls": (float(storm.calls), "calls"),
        }
        return {f"{prefix}{name}": value for name, value in found.items()}

    def _rebuilt(self, database: Database, sources: Sequence[Source]) -> Metrics:
        began, new = time.monotonic(), 0
        for source in sources:
            catalogue = partial(manifests, open_place(str(source.folder)), KEYS, "")
            new += rebuild(database, source.spot, catalogue).new
        database.analyse()
        took = time.monotonic() - began
        say(f"{new} manifests of {self._count} artifacts rebuilt in {took:.1f} s")
        return {
            "rebuild_per_s": (new / took, "manifests/s"),
            "rebuild_s": (took, "s"),
        }

    def _copied(self, database: Database) -> None:
        """The rest from the first database, which takes seconds."""
        for table in (ARTIFACTS, COPIES):
            with self._first.read() as source, database.write() as target:
                # What the storm made there is none of these.
                made = ARTIFACTS.c.namespace if table is ARTIFACTS else COPIES.c.artifact
                rows = source.execute(select(table).where(made.like("team-%"))).mappings()
                for batch in rows.partitions(5000):
                    insert_new(
                        target, table, [{str(k): v for k, v in one.items()} for one in batch]
                    )
        database.analyse()

    def _missing(self, database: Database) -> int:
        """Rows that aren't there, or aren't what the manifests say (all counted, some read)."""
        with database.read() as connection:
            artifacts = connection.execute(select(func.count()).select_from(ARTIFACTS)).scalar_one()
            held = connection.execute(select(func.count()).select_from(COPIES)).scalar_one()
        wrong = abs(self._count - artifacts) + abs(copies(self._count) - held)
        store = Artifacts(database)
        for number in range(0, self._count, max(1, self._count // 1000)):
            manifest = make(number)
            found = store.get(manifest.id)
            said = describe(manifest).model_dump(mode="json")
            wrong += any(found[name] != value for name, value in said.items())
        return wrong


def _times(times: Times) -> Metrics:
    return {
        "list_p50_ms": (percentile(times.lists, 50), "ms"),
        "list_p99_ms": (percentile(times.lists, 99), "ms"),
        "lookup_p50_ms": (percentile(times.lookups, 50), "ms"),
        "lookup_p99_ms": (percentile(times.lookups, 99), "ms"),
        "list_cpu_ms": (times.list_cpu, "ms"),
        "lookup_cpu_ms": (times.lookup_cpu, "ms"),
    }


def _bare(prefix: str, times: Times) -> dict[str, float]:
    return {
        f"{prefix}{name}_{at}_ms": round(percentile(values, percent), 3)
        for name, values in (("list", times.bare_lists), ("lookup", times.bare_lookups))
        for at, percent in (("p50", 50), ("p99", 99))
    }


if __name__ == "__main__":
    main()
