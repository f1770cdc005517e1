"""A backup that is made while the registry serves, and comes back, as
docs/how-to/failures/recover-the-registry.md has it."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.keys.artifactkeys import make_folder, read_folder
from kybernate.adapters.registry import wire
from kybernate.checkpoint.places import open_place
from kybernate.errors import KybernateError
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.unit.checkpoint.kit import make_dump, pack_dump
from tests.unit.registry.replica import name_of, recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kit.servers.registryserver import Server

pytestmark = pytest.mark.integration

POD, WISH = ("ns", "u1"), wire.LeaseWish(seconds=30)


def test_a_backup_is_made_while_it_serves_and_grants_no_claim_until_settled(
    tmp_path: Path, start: Callable[..., Server]
) -> None:
    database = tmp_path / "served.db"
    server = start(f"sqlite:///{database}")
    agent = server.client("agent-n1")
    server.client().settle("new")
    held = agent.lease(POD, WISH)

    def record(number: int) -> None:
        name = f"ns/{name_of(number)}"
        body = recording("n1", held.token, created_ms=number)
        agent.record(name, wire.Recording.model_validate_json(json.dumps(body)))

    reader = Kubectl(Path("/nonexistent/kubectl"), tmp_path, tmp_path / "none")
    places = {"objects": str(tmp_path / "objects"), "nvme": str(tmp_path / "nvme")}
    page = Page("recover-the-registry", reader, database=str(database), **places)
    make_folder(tmp_path / "keys", "here")
    (tmp_path / "nvme").mkdir()
    store = open_place(places["objects"])
    lost = pack_dump(make_dump(tmp_path / "dump"), store, keys=read_folder(tmp_path / "keys"))
    for number in range(2, 12):
        record(number)
    with writing(record):
        page("kubectl -n kyb-system exec")
    server.kill()
    url = f"sqlite:///{tmp_path}/registry.db"
    reader.environment |= {"KYB_REGISTRY_DATABASE": url, "KYB_REGISTRY_CLUSTER": "none"}
    page("kyb-registry unsettle")
    server = start(url)
    page("kyb-registry rebuild")
    known = list(server.client().all(wire.Filter(node="n1", limit=100)))
    assert len(known) >= 10, "what was recorded before is there"
    assert server.client().get(lost.id).id == lost.id, "and what only the places knew"
    agent = server.client("agent-n1")
    version = agent.stopped("ns", "u1", wire.Stop(proof=wire.Proof.AGENT, why="ended")).version
    newest = max(known, key=lambda one: one.created_ms).id
    claim = wire.Claim(artifact=newest, successor="u2", node="n1", version=version)
    with pytest.raises(KybernateError):
        server.client("agent-n1").claim("ns", "u1", claim)
    with page:
        page("kyb-registry settle")
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
