"""A backup that is made while the registry serves, by the line of
docs/how-to/operate/recover-the-registry.md."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from images.cache import REPOSITORY
from kybernate.adapters.registry import wire
from kybernate.errors import KybernateError
from tests.unit.registry.replica import name_of, recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kit.servers.registryserver import Server

pytestmark = pytest.mark.integration

PAGES = REPOSITORY / "docs" / "how-to" / "operate"
CODE = re.compile(r'python3 -c \\\n\s+"(.+?)"', re.DOTALL)
POD, WISH = ("ns", "u1"), wire.LeaseWish(seconds=30)


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
