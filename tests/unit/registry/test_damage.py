"""SQLite's files with a bit changed: told, with what to do, or nothing is different."""

from __future__ import annotations

import errno
import logging
import shutil
import sqlite3
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, inspect, select, text, update

from kybernate.errors import ConfigError, RetryableError
from registry.database import Database
from registry.schema import METADATA, PODS
from tests.unit.registry.keys.test_namespacekeys import Cluster
from tests.unit.registry.replica import Clock, Replica, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Table

SAMPLES = 300

Rows = dict[str, list[Any]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with rows in all tables, of which part is in the log alone."""
    folder, after = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("after")
    cluster = Cluster()
    replica = Replica(url_of(folder), Clock(), namespaces=cluster)
    assert replica.controller("POST", "/v1/settle", {"why": "new"}).status == 200
    for number in range(12):
        one = f"p{number}"
        name = f"{one}@20261121T000000Z-0000000{number % 8}"
        token = replica.token("n1", one)
        assert replica.record("n1", name, token, pod_uid=one, pod=one).status == 201
        assert replica.stop("n1", one).status == 200
        claimed = replica.claim("n1", one, name, f"s{number}")
        assert claimed.status == 200, claimed
        cluster.uids[one] = f"uid-of-{one}"
        replica.keys.newest(one)
        if number == 8:
            with replica.database._engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    assert all(rows_of(replica.database).values())
    # As a process that was killed leaves them.
    for path in folder.iterdir():
        shutil.copyfile(path, after / path.name)
    replica.close()
    (after / "registry.db-shm").unlink()
    return after


def rows_of(database: Database) -> Rows:
    with database.read() as connection:
        return {
            table.name: sorted(tuple(row) for row in connection.execute(select(table)))
            for table in METADATA.sorted_tables
        }


def opened(whole: Path, folder: Path, name: str, bit: int) -> tuple[Database, Rows]:
    """The registry on these files, of which one has a bit changed."""
    folder.mkdir()
    for path in whole.iterdir():
        shutil.copyfile(path, folder / path.name)
    spoil(folder / name, bit)
    database = Database(url_of(folder), limit_s=1.0)
    try:
        database.prepare()
        return database, rows_of(database)
    finally:
        database.close()


def spoil(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(bytes(data))


def bits_of(path: Path) -> list[int]:
    """Those of its head, and a sample of all others, the same each time."""
    size = 8 * path.stat().st_size
    return sorted({*range(8 * 40), *Random(1).sample(range(size), SAMPLES)})


@pytest.mark.slow
def test_the_database(whole: Path, memory: Path) -> None:
    before, told = rows_of(Database(url_of(copied(whole, memory / "copy")))), 0
    for bit in bits_of(whole / "registry.db"):
        folder = memory / str(bit)
        problem = ""
        try:
            assert opened(whole, folder, "registry.db", bit)[1] == before, bit
        except ConfigError as error:
            problem = str(error)
            told += 1
        assert not problem or "kyb-registry rebuild" in problem
        assert (folder / "registry.db").exists()
        shutil.rmtree(folder)
    assert told > SAMPLES // 10


@pytest.mark.slow
def test_its_log(whole: Path, memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, lost = rows_of(Database(url_of(copied(whole, memory / "copy")))), 0
    bits = bits_of(whole / "registry.db-wal")[::4]
    for bit in bits:
        caplog.clear()
        folder = memory / str(bit)
        with caplog.at_level(logging.ERROR):
            database, found = opened(whole, folder, "registry.db-wal", bit)
        if found != before:
            lost += 1
            assert "kyb-registry settle" in caplog.text, bit
            assert list(folder.glob("registry.db-wal.damaged-*"))
            with database.read() as connection:
                assert not any(connection.execute(select(PODS.c.settled)).scalars()), bit
            caplog.clear()
            Database(url_of(folder)).prepare()
            assert caplog.text == ""
        shutil.rmtree(folder)
    assert lost > len(bits) // 2


def test_a_log_that_cant_be_kept_is_waited_for(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a volume that is full: what was lost is told once there is room."""
    folder = copied(whole, tmp_path / "full")
    spoil(folder / "registry.db-wal", 8 * 100)
    database = Database(url_of(folder))

    def full(_: Path, to: Path) -> None:
        to.write_bytes(b"part")
        raise OSError(errno.ENOSPC, "No space left on device", str(to))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        for _ in range(2):
            with pytest.raises(RetryableError, match=r"No space left on device.*-wal\.damaged-"):
                database.prepare()
    assert not list(folder.glob("*.damaged-*"))
    database.prepare()
    assert list(folder.glob("*.damaged-*"))
    with database.read() as connection:
        assert not any(connection.execute(select(PODS.c.settled)).scalars())


@pytest.mark.parametrize("name", ["NULL", "T NULL"])
def test_a_schema_that_is_no_text_says_what_to_do(whole: Path, tmp_path: Path, name: str) -> None:
    spoilt = f"{name}, \n\tPRIMARY KEY (name)".encode()
    at = (whole / "registry.db").read_bytes().index(spoilt)
    folder = tmp_path / "spoilt"
    with pytest.raises(ConfigError, match="kyb-registry rebuild"):
        opened(whole, folder, "registry.db", 8 * at + 7)


def test_a_schema_that_is_no_text_any_more_while_it_serves(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "copy")
    database = Database(url_of(folder))
    database.prepare()
    database.close()
    data = bytearray((folder / "registry.db").read_bytes())
    data[data.index(b"NULL, \n\tPRIMARY KEY (name)")] ^= 0x80
    (folder / "registry.db").write_bytes(data)
    with pytest.raises(RetryableError, match="put a backup back"), database.read():
        pytest.fail("it was opened")


def copied(whole: Path, folder: Path) -> Path:
    shutil.copytree(whole, folder)
    return folder


def test_a_whole_one_is_begun_with_and_nothing_is_told(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied(whole, tmp_path / "copy")
    for _ in range(2):
        Database(url_of(folder)).prepare()
    assert caplog.text == ""
    assert not list(folder.glob("*.damaged-*"))


@pytest.mark.parametrize("table", METADATA.sorted_tables, ids=str)
def test_a_row_with_another_value_in_any_column_says_what_to_do(
    whole: Path, tmp_path: Path, table: Table
) -> None:
    prepared = copied(whole, tmp_path / "copy")
    database = Database(url_of(prepared))
    database.prepare()
    database.close()
    indexes = "FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    for column in table.columns:
        folder = copied(prepared, tmp_path / column.name)
        path = folder / "registry.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            kept = raw.execute(f"SELECT * {indexes}").fetchall()
            raw.execute("PRAGMA writable_schema=ON")
            raw.execute(f"DELETE {indexes}")
        # So SQLite changes the row alone, as a disk does.
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            (first,) = raw.execute(
                str(select(func.min(text("rowid"))).select_from(table))
            ).fetchone()
            changed = update(table).where(text(f"rowid = {first}")).values({column: "77"})
            raw.execute(str(changed), {column.name: "77"})
            raw.execute("PRAGMA writable_schema=ON")
            raw.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", kept)
        with pytest.raises(ConfigError, match="kyb-registry rebuild"):
            Database(url_of(folder)).prepare()


def test_a_file_of_before_is_taken_as_it_is_and_has_each_row_twice_from_now_on(
    whole: Path, tmp_path: Path
) -> None:
    """As 0.2.0 left it, which kept three tables once."""
    folder = copied(whole, tmp_path / "copy")
    with closing(sqlite3.connect(folder / "registry.db", isolation_level=None)) as raw:
        for name in ("writers", "namespaces", "namespace_keys"):
            raw.execute(f"DROP INDEX IF EXISTS {name}_twice")
    database = Database(url_of(folder))
    before = rows_of(database)
    database.prepare()
    assert rows_of(database) == before
    with database.read() as connection:
        for table in METADATA.sorted_tables:
            columns = [column.name for column in table.columns]
            indexes = inspect(connection).get_indexes(table.name)
            assert columns in [one["column_names"] for one in indexes], table.name


def test_what_goes_wrong_while_it_serves_says_what_to_do(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "copy")
    database = Database(url_of(folder))
    database.prepare()
    database.close()
    data = (folder / "registry.db").read_bytes()
    (folder / "registry.db").write_bytes(data[:4096] + bytes(len(data) - 4096))
    with pytest.raises(RetryableError, match="put a backup back"), database.read() as connection:
        connection.execute(text("SELECT * FROM pods")).all()
