"""The database: SQLite for one replica, PostgreSQL for several. Transactions, time, and errors.

A transaction that writes takes its locks at once: of the whole file in SQLite, of the rows that it
reads `for_update` in PostgreSQL.

A replica of PostgreSQL that was promoted may lack what was acknowledged last, claims among it. Each
promotion begins a new timeline; the first write on another one than before unsettles all pods.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from psycopg import OperationalError
from sqlalchemy import create_engine, event, make_url, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as NoneFreeError

from kybernate.errors import ConfigError, RetryableError
from registry import damage, metrics, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import URL, Connection, Engine, Table

    from kybernate.settings.registry import RegistrySettings

log = logging.getLogger(__name__)

_WRITE = "kyb_write"
_TIMELINE = "kyb_timeline"
_RETRY_S = 0.2


class Database:
    """One database. Safe to use from several threads, and from several replicas."""

    def __init__(
        self,
        url: str,
        *,
        limit_s: float = 5.0,
        threads: int = 16,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """Connects at the first use. `limit_s` is for a statement, and for the wait for a lock;
        only `unlimited` transactions have no limit to their statements.

        `clock` gives milliseconds since 1970; by default it is the database's own where there are
        replicas. Raises ConfigError for a URL that names no database.
        """
        parsed = _parse(url)
        self.several = parsed.get_backend_name() == "postgresql"
        pool = {"pool_size": threads + 1, "max_overflow": 0, "pool_timeout": limit_s}
        make = _postgresql if self.several else _sqlite
        self._engine = make(parsed, limit_s, pool)
        # One statement is a transaction of its own there, and needs no words around it.
        alone = {"isolation_level": "AUTOCOMMIT"} if self.several else {}
        self._reader = self._engine.execution_options(**alone)
        self._clock = clock
        self._timeline = ""

    def prepare(self) -> int:
        """Migrate to the newest version; gives the steps. Raises RetryableError, ConfigError."""
        with _told():
            try:
                with self._begun() as connection:
                    return _migrated(connection) if self.several else self._looked_at(connection)
            except DBAPIError as error:
                if damage.is_damage(error, preparing=True):
                    raise damage.told(_line(error)) from error
                raise
            except OSError as error:
                problem = f"the database's log can't be read, or kept aside ({error})"
                raise RetryableError(f"{problem}: make room beside it", _RETRY_S) from error

    def _looked_at(self, connection: Connection) -> int:
        """Migrated, if a disk has changed nothing of the file, and of its log unsettled at most."""
        with connection.begin():
            lost = damage.lost(connection)
            damage.check(connection)
            steps = schema.migrate(connection)
            damage.keep_twice(connection)
            if lost:
                unsettle(connection)
        if lost:
            # Or the same frames would be found again.
            raw: Any = connection.connection.driver_connection
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return steps

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """For reading: each statement sees one state of the database."""
        with _told(), self._reader.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed at the end; an error that comes out undoes it.

        After a RetryableError it may have been committed all the same.
        """
        with _told(), self._begun() as connection:
            timeline = connection.info.get(_TIMELINE, "")
            if timeline != self._timeline:
                with connection.begin():
                    _follow(connection, timeline)
                self._timeline = timeline
            with connection.begin():
                yield connection

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            yield connection.execution_options(**{_WRITE: True})

    def now(self, connection: Connection) -> int:
        """Milliseconds since 1970, by one clock for all replicas."""
        if self._clock is not None:
            return self._clock()
        if not self.several:
            return time.time_ns() // 1_000_000
        found = connection.execute(text("SELECT extract(epoch FROM clock_timestamp()) * 1000"))
        return int(found.scalar_one())

    def why_not(self) -> str | None:
        """Why the database can't be used now, in a sentence."""
        try:
            with self.read() as connection:
                connection.execute(text("SELECT 1 FROM artifacts LIMIT 1"))
        except RetryableError as error:
            return str(error)
        return None

    def analyse(self) -> None:
        """Have the database look at its tables again, after many rows have come at once."""
        with self.write() as connection:
            connection.execute(text("ANALYZE"))

    def close(self) -> None:
        """Drop all connections that are idle."""
        self._engine.dispose()


def open_database(settings: RegistrySettings) -> Database:
    """The database that the settings name. Raises ConfigError."""
    return Database(
        settings.database.get_secret_value(),
        limit_s=settings.database_s,
        threads=settings.threads,
    )


def insert_new(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert those rows whose key is new; gives how many that were."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).on_conflict_do_nothing()
    statement = statement.execution_options(preserve_rowcount=True)
    return connection.execute(statement, rows[0] if len(rows) == 1 else list(rows)).rowcount


def unlimited(connection: Connection) -> None:
    """The rest of this transaction may change every row: no time is enough for it at any size.

    Cut off, it would begin again each time, and without it nothing can be written any more.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))


def unsettle(connection: Connection) -> int:
    """Claims may exist that aren't here, on any pod; gives how many pods there are."""
    unlimited(connection)
    connection.execute(schema.MARKS.delete().where(schema.MARKS.c.name == schema.SETTLED))
    pods = schema.PODS
    known = update(pods).values(settled=False, version=pods.c.version + 1)
    return connection.execute(known).rowcount


def _follow(connection: Connection, timeline: str) -> None:
    """Remember the timeline; if another was remembered, claims may have been lost."""
    marks = schema.MARKS
    insert_new(connection, marks, [{"name": schema.TIMELINE, "value": timeline}])
    ours = marks.c.name == schema.TIMELINE
    before = connection.execute(select(marks.c.value).where(ours).with_for_update()).scalar_one()
    if before == timeline:
        return
    connection.execute(update(marks).where(ours).values(value=timeline))
    log.warning(
        "PostgreSQL is on timeline %s, and was on %s: a replica was promoted, or a backup "
        "restored, and may lack claims; %d pods can't be claimed until `kyb-registry settle`",
        *(timeline, before, unsettle(connection)),
    )


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except NoneFreeError as error:
        metrics.FAULTS.labels("busy").inc()
        raise RetryableError("every connection to the database is in use", _RETRY_S) from error
    except DBAPIError as error:
        metrics.FAULTS.labels("lost" if error.connection_invalidated else "failed").inc()
        what = damage.told(_line(error)).problem if damage.is_damage(error) else _line(error)
        raise RetryableError(f"the database does not answer: {what}", _RETRY_S) from error


def _line(error: DBAPIError) -> str:
    return (str(error.orig).strip() or type(error).__name__).splitlines()[0]


def _migrated(connection: Connection) -> int:
    with connection.begin():
        return schema.migrate(connection)


def _parse(url: str) -> URL:
    # What is wrong with it is told without it: it may hold a password.
    problem = "write sqlite:////path/of/file.db, or postgresql://user:password@host/name"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise ConfigError("database", problem) from error
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and parsed.database and parsed.database != ":memory:":
        return parsed.set(drivername="sqlite+pysqlite")
    raise ConfigError("database", problem)


def _postgresql(url: URL, limit_s: float, pool: dict[str, Any]) -> Engine:
    limit_ms = int(limit_s * 1000)
    options = (
        f"-c statement_timeout={limit_ms} -c lock_timeout={limit_ms} "
        f"-c idle_in_transaction_session_timeout={2 * limit_ms} -c synchronous_commit=on"
    )
    alive = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
    arguments = {"connect_timeout": max(2, round(limit_s)), "options": options, **alive}
    engine = create_engine(url, connect_args=arguments, isolation_level="READ COMMITTED", **pool)
    event.listen(engine, "connect", _note_timeline)
    return engine


def _sqlite(url: URL, limit_s: float, pool: dict[str, Any]) -> Engine:
    arguments = {"timeout": limit_s, "check_same_thread": False}
    engine = create_engine(url, connect_args=arguments, **pool)
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _note_timeline(connection: Any, record: Any) -> None:
    # A standby's connections would outlive its promotion, and tell of states of before.
    if connection.execute("SELECT pg_is_in_recovery()").fetchone()[0]:
        connection.close()
        raise OperationalError("it is a standby; the URL must lead to the primary")
    found = connection.execute("SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)")
    record.info[_TIMELINE] = found.fetchone()[0]
    connection.rollback()


def _set_up(connection: Any, _record: object) -> None:
    # Transactions are ours to begin: the module's own begin too late to see one state.
    connection.isolation_level = None
    for line in (
        "journal_mode=WAL",
        # A claim that was granted must be there after a power cut.
        "synchronous=FULL",
        "foreign_keys=ON",
        "wal_autocheckpoint=1000",
    ):
        try:
            connection.execute(f"PRAGMA {line}")
        except UnicodeDecodeError as error:
            raise damage.unreadable() from error


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
