"""A real PostgreSQL of Debian's, on loopback, in a folder of its own, never as root.

Its packages are unpacked into the project's cache; nothing is installed on the host.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from bench.processes import free_port
from images import debs
from images.cache import silent
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = debs.DebSet(
    "postgresql",
    "bookworm",
    (
        ("postgresql-15", "15.18-0+deb12u1"),
        ("libpq5", "15.18-0+deb12u1"),
        ("libicu72", "72.1-3+deb12u1"),
        ("libldap-2.5-0", "2.5.13+dfsg-5"),
        ("libsasl2-2", "2.1.28+dfsg-10"),
        ("libxml2", "2.9.14+dfsg-1.3~deb12u6"),
        ("libgssapi-krb5-2", "1.20.1-2+deb12u5"),
        ("libkrb5-3", "1.20.1-2+deb12u5"),
        ("libk5crypto3", "1.20.1-2+deb12u5"),
        ("libkrb5support0", "1.20.1-2+deb12u5"),
        ("libkeyutils1", "1.6.3-2"),
        ("liblz4-1", "1.9.4-1"),
        ("libzstd1", "1.5.4+dfsg2-5"),
        ("libssl3", "3.0.20-1~deb12u2"),
    ),
)
"""The server, and those libraries of it that not every Debian host has."""

BIN = "usr/lib/postgresql/15/bin"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
NOBODY = 65534
_UNUSED = ("bitcode", "doc", "locale", "man", "llvmjit*")
START_S = 60.0


class Postgresql:
    """A server and its data; `dsn` is for its one user and database."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._folder, self._data = folder, folder / "data"
        self._password = secrets.token_hex(16)
        self._root = _own_copy(folder)
        self._port = free_port()
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """Where the registry finds it."""
        return f"postgresql://kyb:{self._password}@127.0.0.1:{self._port}/postgres"

    def make(self) -> None:
        """Make the data folder. Raises KybernateError."""
        secret = self._folder / "password"
        secret.write_text(self._password)
        _give(secret)
        options = ["--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--no-sync"]
        argv = [self._path("initdb"), "--pgdata", str(self._data), "--username=kyb", *options]
        run: subprocess.CompletedProcess[bytes] = subprocess.run(
            [*argv, "--locale=C.UTF-8"],
            capture_output=True,
            timeout=START_S,
            check=False,
            **self._as(),
        )
        if run.returncode:
            said = (run.stderr or run.stdout).decode(errors="replace").strip().splitlines()[-3:]
            raise KybernateError(f"initdb of Debian's PostgreSQL failed: {' / '.join(said)}")

    def start(self) -> None:
        """Start it, and wait until it answers. Raises KybernateError."""
        settings = {
            "listen_addresses": "127.0.0.1,127.0.0.10,127.0.0.11",
            "port": self._port,
            "unix_socket_directories": self._folder,
            "fsync": "on" if self._durable else "off",
            "jit": "off",
            "max_connections": 100,
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._path("postgres"), "-D", str(self._data), *flags],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as(),
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self._folder / "log").read_text().splitlines()[-3:]
                raise KybernateError(f"PostgreSQL did not start: {' / '.join(tail)}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it at once, and whatever it was at."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGQUIT)
            self._process.wait(START_S)
            self._process = None

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.dsn, connect_timeout=2):
            return True
        return False

    def _path(self, program: str) -> str:
        return str(self._root / BIN / program)

    def _as(self) -> dict[str, Any]:
        # Root's own folders are closed to nobody, so it starts where it may be.
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
        libraries = str(self._root / LIBRARIES)
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "LD_LIBRARY_PATH": libraries}
        return {"cwd": self._folder, "env": env, **user}


@contextmanager
def running(*, durable: bool = False) -> Iterator[Postgresql]:
    """A server with an empty database. Raises KybernateError if there can't be one here."""
    folder = Path(tempfile.mkdtemp(prefix="kyb-postgresql-", dir="/var/tmp"))
    _give(folder)
    server = Postgresql(folder, durable=durable)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _own_copy(folder: Path) -> Path:
    """The unpacked packages, where the server's user can read them."""
    root = debs.unpack(PACKAGES, silent).folder
    if os.getuid() != 0:
        return root
    copy = folder / "root"
    shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(*_UNUSED))
    return copy


def _give(path: Path) -> None:
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)
