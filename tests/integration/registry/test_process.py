"""The registry as a process over real mutual TLS, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.adapters.registry import wire
from kybernate.adapters.registry.client import Registry
from kybernate.errors import (
    ConfigError,
    ConflictError,
    DeadlineError,
    NotFoundError,
    RefusedError,
)
from kybernate.types import Tier
from tests.integration.registry.conftest import new_database
from tests.kit.breaks.spoil import Spoiler
from tests.kit.clients.caller import NOT_HTTP, Caller
from tests.kit.servers.registryserver import Server
from tests.unit.registry.replica import DIGEST, name_of, recording
from tests.unit.registry.test_api import BODIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = pytest.mark.integration

ONE = f"ns/{name_of(1)}"
POD, WISH = ("ns", "u1"), wire.LeaseWish(seconds=30)
COUNT = int(os.environ.get("KYB_FUZZ", "1000"))
WORDS = (
    *("artifact", "held", "token", "digest", "place", "node", "store", "state", "facts", "seconds"),
    *("proof", "why", "successor", "version", "again", "nvme", "object", "ram", "verified", "n1"),
    *(ONE, DIGEST, "u1", "ns", "agent", "deleted"),
)


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/registry.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite"))
    return new_database(request.getfixturevalue("postgresql"))


def body(token: int, **changes: Any) -> wire.Recording:
    return wire.Recording.model_validate_json(json.dumps(recording("n1", token, **changes)))


def test_what_a_client_says_and_hears(start: Callable[..., Server], url: str) -> None:
    server = start(url)
    agent, other, controller = (
        server.client(name) for name in ("agent-n1", "agent-n2", "controller")
    )
    controller.settle("new")
    held = agent.lease(POD, WISH)
    agent.record(ONE, body(held.token))
    entry = agent.record(ONE, body(held.token))
    assert agent.renew(held, 60).token == held.token
    assert entry == controller.get(ONE) == server.client("proxy").get(ONE)
    spot = {"place": "nvme", "node": "n2"}
    copy = wire.Copy.model_validate_json(json.dumps({**spot, "state": "verified", "size": 5}))
    assert len(other.report(ONE, wire.CopyReport(digest=DIGEST, held=copy)).copies) == 2
    found = controller.latest(wire.Latest(namespace="ns", model="llama"))
    assert (found.id, found.facts) == (ONE, {"driver": "580.1", "gpu_count": 1})
    for number in range(2, 7):
        agent.record(f"ns/{name_of(number)}", body(held.token, created_ms=number))
    wanted = wire.Filter(node="n1", place=Tier.NVME, limit=2)
    assert len(list(controller.all(wanted))) == 6
    agent.give_back(held)
    stop = wire.Stop(proof=wire.Proof.AGENT, why="ended")
    version = agent.stopped("ns", "u1", stop).version
    claim = wire.Claim(artifact=ONE, successor="u2", node="n2", version=version)
    assert other.claim("ns", "u1", claim).successor == "u2"
    assert agent.drop(ONE, wire.Spot(place=Tier.NVME, node="n1")).copies == 1
    gone = wire.Stop(proof=wire.Proof.DELETED, why="no such pod")
    controller.stopped("ns", "u2", gone)
    assert controller.release("ns", "u1", "u2").successor == ""
    assert agent.drop("ns/" + name_of(99), wire.Spot(place=Tier.NVME, node="n1")).copies == 0


def test_errors_have_classes(start: Callable[..., Server], sqlite: str, tmp_path: Path) -> None:
    server = start(sqlite)
    agent = server.client("agent-n1")
    with pytest.raises(NotFoundError, match="not known"):
        agent.get(ONE)
    with pytest.raises(ConflictError, match="no lease was taken"):
        agent.record(ONE, body(7))
    held = wire.Copy(place=Tier.RAM, node="n2", state=wire.CopyState.MISSING)
    told = wire.CopyReport(digest=DIGEST, held=held)
    with pytest.raises(RefusedError, match="can't speak for node n2"):
        agent.report(ONE, told)
    with pytest.raises(RefusedError, match="may not do that"):
        server.client("proxy").lease(POD, WISH)
    with pytest.raises(RefusedError, match="your certificate names kyb-scheduler"):
        server.client("scheduler").get(ONE)
    with pytest.raises(ConfigError, match="kybernate pki init"):
        Registry(server.url, tmp_path / "none", "agent-n1")
    with pytest.raises(ConfigError, match="https://host:port"):
        Registry("http://x", server.tls, "agent-n1")
    with pytest.raises(DeadlineError, match="no answer within"):
        # Its name is not in the certificate, which a client finds out before it says anything.
        Registry(f"https://127.0.0.2:{server.port}", server.tls, "agent-n1").get(ONE, 0.5)


def test_who_has_no_certificate_of_ours_gets_nothing(
    start: Callable[..., Server], sqlite: str, tls: Path
) -> None:
    caller = Caller(start(sqlite).port, ssl.create_default_context(cafile=str(tls / "ca.crt")))
    told = b""
    with suppress(ssl.SSLError, ConnectionError):
        told = caller.raw(b"GET /v1/artifacts HTTP/1.1\r\nHost: x\r\n\r\n")
    assert told == b""


def test_a_client_waits_for_a_replica_that_starts_again(
    start: Callable[..., Server], url: str
) -> None:
    server = start(url)
    agent = server.client("agent-n1")
    token = agent.lease(POD, WISH).token
    agent.record(ONE, body(token))
    server.kill()
    server.start(wait=False)
    assert agent.get(ONE, 30).id == ONE
    assert agent.record(ONE, body(token), 30).copies
    assert agent.lease(POD, WISH).token > token


def test_two_replicas_are_one_registry(start: Callable[..., Server], postgresql: Any) -> None:
    url = new_database(postgresql)
    first, second = start(url), start(url)
    agent, elsewhere = first.client("agent-n1"), second.client("agent-n2")
    token = agent.lease(POD, WISH).token
    agent.record(ONE, body(token))
    with pytest.raises(ConflictError, match="runs on node n1"):
        elsewhere.lease(POD, WISH)
    first.kill()
    assert elsewhere.get(ONE).id == ONE
    assert second.client("agent-n1").lease(POD, WISH).token > token


def test_a_database_that_was_away_is_used_again(
    start: Callable[..., Server], postgresql: Any
) -> None:
    server = start(new_database(postgresql))
    agent = server.client("agent-n1")
    agent.record(ONE, body(agent.lease(POD, WISH).token))
    postgresql.stop()
    try:
        assert not server.ready()
        with pytest.raises(DeadlineError, match="no answer within"):
            agent.get(ONE, 1.0)
    finally:
        postgresql.start()
    assert agent.get(ONE, 30).id == ONE
    _await(server.ready)


def test_it_waits_for_its_database(
    start: Callable[..., Server], tls: Path, tmp_path: Path, postgresql: Any
) -> None:
    url = new_database(postgresql)
    server = start(url)
    assert server.get("/healthz") == "ok\n"
    assert server.stop() == 0
    lonely = Server(tls, tmp_path / "lonely.log", "postgresql://kyb@127.0.0.1:1/none")
    lonely.start(wait=False)
    try:
        _await(lambda: "ok" in _page(lonely, "/healthz"))
        assert not lonely.ready()
        with pytest.raises(DeadlineError, match="no answer within 3 s"):
            lonely.client().get(ONE, 3.0)
        assert "password" not in lonely.log
    finally:
        lonely.kill()


def test_calls_are_counted(start: Callable[..., Server], sqlite: str) -> None:
    server = start(sqlite)
    agent = server.client("agent-n1")
    agent.record(ONE, body(agent.lease(POD, WISH).token))
    page = server.get("/metrics")
    assert 'kyb_registry_calls_total{operation="recordArtifact",status="201"} 1.0' in page
    assert 'kyb_registry_copies{place="nvme",state="verified"} 1.0' in page
    assert 'kyb_registry_call_seconds_count{operation="takeLease"} 1.0' in page


@pytest.fixture(scope="module")
def caller(tls: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A caller with an agent's certificate; afterwards the log holds no traceback."""
    folder = tmp_path_factory.mktemp("fuzz")
    server = Server(tls, folder / "registry.log", f"sqlite:///{folder}/registry.db")
    server.start()
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    context.load_cert_chain(tls / "agent-n1.crt", tls / "agent-n1.key")
    made = Caller(server.port, context)
    yield made
    made.close()
    server.kill()
    assert "Traceback" not in server.log


def test_spoilt_calls(caller: Caller) -> None:
    paths = {
        "takeLease": "/v1/pods/ns/u1/lease",
        "reportStop": "/v1/pods/ns/u1/stop",
        "claimPod": "/v1/pods/ns/u1/claim",
    }
    found: dict[int, int] = {}
    for seed in range(COUNT):
        random = Random(seed)
        name = random.choice(sorted(paths))
        spoilt = Spoiler(random, WORDS).body(json.dumps(BODIES[name]).encode())
        status, said = caller.post(paths[name], spoilt)
        assert status in (200, 400, 403, 404, 409, 413), (seed, name, status, said)
        assert status == 200 or said["error"], (seed, name)
        found[status] = found.get(status, 0) + 1
    print(found, f"slowest {caller.slowest_s * 1000:.0f} ms")
    assert found[400] > COUNT / 20
    assert caller.slowest_s < 5


@pytest.mark.parametrize("text", NOT_HTTP, ids=range(len(NOT_HTTP)))
def test_what_is_no_request_is_turned_away(caller: Caller, text: bytes) -> None:
    told = caller.raw(text.replace(b"/mutate", b"/v1/pods/ns/u1/lease"))
    head, _, answer = told.rpartition(b"\r\n\r\n")
    assert head.rpartition(b"HTTP/1.1 ")[2].startswith(b"4"), told[:200]
    assert json.loads(answer)["error"]


def test_a_large_body_is_refused(caller: Caller) -> None:
    size = 1 << 20
    status, said = caller.post("/v1/pods/ns/u1/lease", b" " * size, **{"Content-Length": str(size)})
    assert (status, bool(said["error"])) == (413, True)


def _page(server: Server, path: str) -> str:
    try:
        return server.get(path)
    except OSError:
        return ""


def _await(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_store_that_never_answers_keeps_nobody_from_leases(
    start: Callable[..., Server], sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections. Whoever asks for what lies there asks again after a few seconds, and
    the call of before has its thread still."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(128)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for name, value in {"ENDPOINT": endpoint, "ALLOW_HTTP": "true", "REGION": "eu-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            monkeypatch.setenv(f"AWS_{name}", "x")
        server = start(sqlite, OBJECT_STORE="s3://bucket/kyb")
        server.client().settle("new")
        with ThreadPoolExecutor(24) as agents:
            asked = [
                agents.submit(server.client("agent-n2").head_object, f"clocks/{number:016x}", 8.0)
                for number in range(24)
            ]
            time.sleep(2.0)
            for number in range(20):
                server.client("agent-n1").lease(("ns", f"u{number}"), WISH, 8.0)
        assert all(isinstance(one.exception(), DeadlineError) for one in asked)
