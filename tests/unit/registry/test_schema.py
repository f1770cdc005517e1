"""Databases of every version, and those that can't be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, text

from kybernate.errors import ConfigError, RetryableError
from kybernate.settings.registry import RegistrySettings
from registry.database import Database, open_database
from registry.schema import METADATA, MIGRATIONS
from tests.unit.registry.replica import url_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_new_database_has_the_tables_that_the_code_uses(tmp_path: Path) -> None:
    database = Database(url_of(tmp_path))
    assert database.prepare() == len(MIGRATIONS)
    assert database.prepare() == 0
    with database.read() as connection:
        found = inspect(connection)
        for table in METADATA.sorted_tables:
            columns = {one["name"]: one["nullable"] for one in found.get_columns(table.name)}
            assert columns == {one.name: one.nullable for one in table.columns}
            keys = found.get_pk_constraint(table.name)["constrained_columns"]
            assert keys == [one.name for one in table.primary_key]


ROW = "INSERT INTO artifacts VALUES ('ns/a@b', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)"


def test_a_database_of_0_2_0_gets_the_column_that_it_left_out(tmp_path: Path) -> None:
    database = Database(url_of(tmp_path))
    database.prepare()
    with database.write() as connection:
        connection.execute(text("DROP INDEX writers_twice"))
        connection.execute(text("ALTER TABLE writers DROP COLUMN told_ms"))
        connection.execute(text(ROW))
        connection.execute(text("INSERT INTO writers VALUES ('ns/a@b', 'n1', 7)"))
    for _ in range(2):
        database.prepare()
        with database.read() as connection:
            rows = connection.execute(text("SELECT * FROM writers")).all()
            assert rows == [("ns/a@b", "n1", 7, 0)]


def test_a_database_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    database = Database(url_of(tmp_path))
    database.prepare()
    with database.write() as connection:
        connection.execute(text("UPDATE marks SET value = '99' WHERE name = 'schema'"))
    with pytest.raises(ConfigError, match="newer program"):
        database.prepare()


@pytest.mark.parametrize(
    "url", ["", "x", "mysql://kyb:secret@h/d", "sqlite://", "sqlite:///:memory:"]
)
def test_a_wrong_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:////path") as caught:
        Database(url)
    assert "secret" not in str(caught.value)


def test_the_url_is_shown_nowhere() -> None:
    settings = RegistrySettings.model_validate({"database": "postgresql://kyb:secret@h/d"})
    assert "secret" not in settings.model_dump_json() + repr(settings)
    assert open_database(settings).several


def test_a_database_that_is_gone_is_told_in_a_sentence(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/none/registry.db", limit_s=0.1)
    with pytest.raises(RetryableError, match="does not answer"):
        database.prepare()
    assert "does not answer" in str(database.why_not())


def test_two_writers_take_turns_and_a_reader_never_waits(tmp_path: Path) -> None:
    one, two = Database(url_of(tmp_path), limit_s=0.2), Database(url_of(tmp_path), limit_s=0.2)
    one.prepare()
    with one.write() as connection:
        connection.execute(text("INSERT INTO marks (name, value) VALUES ('a', '1')"))
        with pytest.raises(RetryableError, match="locked"), two.write():
            pass
        with two.read() as other:
            assert other.execute(text("SELECT count(*) FROM marks WHERE name = 'a'")).scalar() == 0
    assert two.why_not() is None


def test_what_is_committed_is_on_the_disk(tmp_path: Path) -> None:
    database = Database(url_of(tmp_path))
    database.prepare()
    with database.read() as connection:
        settings = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
