"""PostgreSQL for all tests here, and registries as processes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from kybernate.errors import KybernateError
from tests.kit.servers import postgresql as servers
from tests.kit.servers.registryserver import Server, certificates
from tests.unit.registry.replica import Clock, Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_count = iter(range(10**6))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[servers.Postgresql]:
    """One server for all; each test makes a database of its own."""
    started = servers.running()
    try:
        server = started.__enter__()
    except KybernateError as error:
        pytest.skip(f"no PostgreSQL here: {error}")
    yield server
    started.__exit__(None, None, None)


def new_database(server: servers.Postgresql) -> str:
    """The URL of an empty database."""
    name = f"test{next(_count)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return urlunsplit(urlsplit(server.dsn)._replace(path=f"/{name}"))


@pytest.fixture
def database(postgresql: servers.Postgresql) -> str:
    return new_database(postgresql)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def replica(database: str, clock: Clock) -> Iterator[Replica]:
    """As the one of the unit tests, over PostgreSQL."""
    made = Replica(database, clock)
    assert made.controller("POST", "/v1/settle", {"why": "new"}).status == 200
    yield made
    made.close()


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls"), ["n1", "n2"])


@pytest.fixture
def start(tmp_path: Path, tls: Path) -> Iterator[Callable[..., Server]]:
    """Starts replicas; afterwards none has logged a traceback."""
    made: list[Server] = []

    def begin(url: str, **more: str) -> Server:
        server = Server(tls, tmp_path / f"registry-{len(made)}.log", url, **more)
        made.append(server)
        server.start()
        return server

    yield begin
    for one in made:
        one.kill()
    assert not [one.log for one in made if "Traceback" in one.log]
