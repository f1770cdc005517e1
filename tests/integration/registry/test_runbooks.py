"""Runbooks of docs/how-to/operate, their own commands: a change of authorities while everybody
calls, and a backup that is made while the registry serves."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from images.cache import REPOSITORY
from kybernate.adapters.registry import wire
from kybernate.adapters.registry.client import Registry
from kybernate.errors import KybernateError, NotFoundError
from tests.kit.servers.registryserver import Server, certificates
from tests.unit.registry.replica import name_of, recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

PAGES = REPOSITORY / "docs" / "how-to" / "operate"
BLOCK = re.compile(r"^( *)```sh\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r'python3 -c \\\n\s+"(.+?)"', re.DOTALL)
POD, WISH = ("ns", "u1"), wire.LeaseWish(seconds=30)
STEPS = (("pki", "pki"), ("pki-both", "pki"), ("pki-both", "pki-new"), ("pki-new", "pki-new"))
"""Whose authorities and whose certificates each has after each step of the page."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader stands, once the page's first step was done."""
    certificates(tmp_path / "pki", [])
    program = tmp_path / "bin" / "kybernate"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kybernate.cli "$@"\n')
    program.chmod(0o755)
    first = BLOCK.findall((PAGES / "change-keys.md").read_text())[0][1]
    path = f"{program.parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(["bash", "-euc", first], cwd=tmp_path, env=environ, check=True, timeout=60)
    return tmp_path


def equip(folder: Path, into: Path, step: int, name: str) -> None:
    """What the Secret of a service has after the step, as the kubelet lays it: each file whole."""
    authorities, pair = (folder / one for one in STEPS[step])
    into.mkdir(exist_ok=True)
    for file in (
        *(authorities / "ca.crt", authorities / "agents-ca.crt"),
        *(pair / f"{name}.crt", pair / f"{name}.key"),
    ):
        beside = into / f".{file.name}"
        shutil.copy(file, beside)
        beside.replace(into / file.name)


def asked(url: str, tls: Path) -> None:
    """Call with what the folder holds. Raises KybernateError if one doesn't believe the other."""
    client = Registry(url, tls, "controller")
    with pytest.raises(NotFoundError):
        client.get(f"ns/{name_of(99)}")


@pytest.fixture
def served(folder: Path) -> Iterator[Server]:
    """A registry with the certificates of the beginning."""
    equip(folder, folder / "registry", 0, "registry")
    server = Server(folder / "registry", folder / "log", f"sqlite:///{folder}/registry.db")
    server.start()
    yield server
    server.kill()


def test_authorities_are_changed_and_nobody_is_cut_off(folder: Path, served: Server) -> None:
    serving, calling = folder / "registry", folder / "controller"
    equip(folder, calling, 0, "controller")
    asked(served.url, calling)
    for step in range(1, len(STEPS)):
        # Whoever comes first, the other is a step behind for a while.
        first, second = (serving, "registry"), (calling, "controller")
        for into, name in (first, second) if step % 2 else (second, first):
            equip(folder, into, step, name)
            asked(served.url, calling)
    # That is why each step waits for the end of the one before.
    equip(folder, calling, 1, "controller")
    with pytest.raises(KybernateError):
        asked(served.url, calling)


def test_a_backup_is_made_while_it_serves_and_grants_no_claim_until_settled(
    tmp_path: Path, start: Callable[..., Server]
) -> None:
    database = tmp_path / "registry.db"
    server = start(f"sqlite:///{database}")
    agent = server.client("agent-n1")
    server.client().settle("new")
    held = agent.lease(POD, WISH)

    def record(number: int) -> None:
        name = f"ns/{name_of(number)}"
        body = recording("n1", held.token, created_ms=number)
        agent.record(name, wire.Recording.model_validate_json(json.dumps(body)))

    for number in range(2, 12):
        record(number)
    with writing(record):
        backup = backed_up(database)
    server.kill()
    restored = tmp_path / "restored.db"
    restored.write_bytes(backup)
    url = f"sqlite:///{restored}"
    command(url, "unsettle")
    server = start(url)
    known = list(server.client().all(wire.Filter(node="n1", limit=100)))
    assert len(known) >= 10, "what was recorded before is there"
    agent = server.client("agent-n1")
    version = agent.stopped("ns", "u1", wire.Stop(proof=wire.Proof.AGENT, why="ended")).version
    newest = max(known, key=lambda one: one.created_ms).id
    claim = wire.Claim(artifact=newest, successor="u2", node="n1", version=version)
    with pytest.raises(KybernateError):
        server.client("agent-n1").claim("ns", "u1", claim)
    command(url, "settle", "--why", "all agents told their claims again")
    now = agent.stopped("ns", "u1", wire.Stop(proof=wire.Proof.AGENT, why="ended")).version
    claim = claim.model_copy(update={"version": now})
    assert agent.claim("ns", "u1", claim).successor == "u2"


@contextlib.contextmanager
def writing(record: Callable[[int], None]) -> Iterator[None]:
    """Something is recorded all the while."""
    over = threading.Event()

    def write() -> None:
        for number in itertools.count(12):
            if over.is_set():
                return
            record(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def backed_up(database: Path) -> bytes:
    """By the page's own line."""
    (code,) = CODE.findall((PAGES / "recover-the-registry.md").read_text())
    line = code.replace("/var/lib/kyb/registry/registry.db", str(database))
    assert line != code
    return subprocess.run(
        [sys.executable, "-c", line], capture_output=True, check=True, timeout=60
    ).stdout


def command(url: str, *words: str) -> None:
    environ = {**os.environ, "KYB_REGISTRY_DATABASE": url, "KYB_REGISTRY_CLUSTER": "none"}
    argv = [sys.executable, "-m", "registry", *words]
    done = subprocess.run(
        argv, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
