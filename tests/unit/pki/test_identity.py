"""What a node's agent shows, as its files come and go, and how it asks for its own."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509

from kybernate import keys
from kybernate.adapters.keys.nodesignatures import NodeSignatures
from kybernate.adapters.pki import AGENTS, Folder, Validity
from kybernate.adapters.pki.requests import read_request, sign
from kybernate.errors import ConfigError, RetryableError
from kybernate.runtime.identity import Identity
from tests.kit.clock import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Signs:
    """An API server whose signer answers each request as `answer` says."""

    def __init__(self, tls: Path, lasts_s: float = 3600) -> None:
        self._authority = Folder(tls).authority(AGENTS)
        self._lasts = timedelta(seconds=lasts_s)
        self.asked: list[dict[str, Any]] = []
        self.denies = False

    async def __call__(self) -> Any:
        return self

    def post(self, _path: str, body: dict[str, Any], *, timeout: float) -> None:
        self.asked.append(body)

    def get(self, _path: str, *, timeout: float) -> dict[str, Any]:
        if self.denies:
            condition = {"type": "Denied", "message": "node n1 is revoked"}
            return {"status": {"conditions": [condition]}}
        item = self.asked[-1]
        account = f"system:serviceaccount:{keys.NAMESPACE}:{keys.AGENT_ACCOUNT}"
        item["spec"] |= {"username": account, "extra": {keys.NODE_OF_TOKEN: ["n1"]}}
        now = datetime.now(UTC)
        pem = sign(self._authority, read_request(item), self._lasts, now, now)
        return {"status": {"certificate": base64.b64encode(pem).decode()}}


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    Folder(tmp_path / "tls").init([], Validity(), datetime.now(UTC))
    return tmp_path / "tls"


def running(identity: Identity, api: Any, over: Callable[[], object] | None = None) -> None:
    """Let it run until it is `over`, by default until it has a certificate of its own, and for a
    moment more: what it asks then is too much."""
    file = identity.file
    assert file is not None

    async def run() -> None:
        asking = asyncio.create_task(identity.run(api))
        assert await until(over or file.is_file, 60)
        await asyncio.sleep(0.2)
        assert not asking.done()
        asking.cancel()

    asyncio.run(run())


def has(own: Path) -> bool:
    return (own / "agent.pem").is_file()


def issuer(shown: bytes) -> str:
    return x509.load_pem_x509_certificate(shown).issuer.rfc4514_string()


def test_until_it_has_its_own_it_shows_what_nobody_believes(tls: Path, tmp_path: Path) -> None:
    identity, before = Identity("n1", tls, tmp_path / "own"), None
    assert issuer(identity.shown().certificate) == "CN=nobody"
    with pytest.raises(RetryableError, match="not there yet"):
        identity.files()
    before = identity.stamp()
    api = Signs(tls)
    running(identity, api)
    assert (len(api.asked), identity.stamp() != before) == (1, True)
    assert issuer(identity.shown().certificate) == f"CN={keys.CN_AGENTS}"
    assert b"PRIVATE KEY" in identity.shown().key
    assert b"PRIVATE KEY" not in identity.shown().certificate
    assert identity.files()[1] == identity.file
    # The next agent of this node goes on with it, and asks for none.
    again = Signs(tls)
    running(Identity("n1", tls, tmp_path / "own"), again)
    assert again.asked == []


def test_the_mounted_one_is_shown_until_then(tls: Path, tmp_path: Path) -> None:
    Folder(tls).init(["n1"], Validity(), datetime.now(UTC))
    identity = Identity("n1", tls, tmp_path / "own")
    assert issuer(identity.shown().certificate) == "CN=kyb-ca"
    running(identity, Signs(tls))
    assert issuer(identity.shown().certificate) == f"CN={keys.CN_AGENTS}"


def test_it_is_renewed_before_it_ends(tls: Path, tmp_path: Path) -> None:
    api = Signs(tls, lasts_s=1.5)
    running(Identity("n1", tls, tmp_path / "own"), api, lambda: len(api.asked) >= 3)
    assert 3 <= len(api.asked) <= 5
    requests = {one["metadata"]["name"] for one in api.asked}
    assert len(requests) == len(api.asked)


def test_what_can_not_be_used_is_taken_away_and_asked_for_anew(
    tls: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "own"
    running(Identity("n1", tls, own), Signs(tls))
    good = (own / "agent.pem").read_bytes()
    other = tmp_path / "other"
    Folder(other).init([], Validity(), datetime.now(UTC))
    for content, folder in ((b"", tls), (good[:300], tls), (good, other)):
        (own / "agent.pem").write_bytes(content)
        api = Signs(folder)
        with caplog.at_level(logging.WARNING):
            running(Identity("n1", folder, own), api, lambda a=api: a.asked and has(own))
        assert len(api.asked) == 1
        assert "can't be used" in caplog.text
        caplog.clear()


def rotated(tls: Path, folder: Path) -> tuple[bytes, bytes]:
    """The authority of agents, and another one that follows it, which is in `folder`."""
    Folder(folder).init([], Validity(), datetime.now(UTC))
    return (tls / "agents-ca.crt").read_bytes(), (folder / "agents-ca.crt").read_bytes()


def test_any_authority_of_the_file_may_have_certified_it(tls: Path, tmp_path: Path) -> None:
    both = rotated(tls, tmp_path / "new")
    for number, content in enumerate((both[0] + both[1], both[1] + both[0])):
        (tls / "agents-ca.crt").write_bytes(content)
        api, own = Signs(tmp_path / "new"), tmp_path / f"own-{number}"
        running(Identity("n1", tls, own), api)
        assert len(api.asked) == 1
        assert (own / "agent.pem").is_file()


def test_one_of_an_authority_that_is_not_known_yet_takes_no_good_ones_place(
    tls: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "own"
    rotated(tls, tmp_path / "new")
    running(Identity("n1", tls, own), Signs(tls, lasts_s=6))
    good, api = (own / "agent.pem").read_bytes(), Signs(tmp_path / "new")
    with caplog.at_level(logging.WARNING):
        running(Identity("n1", tls, own), api, lambda: "must list the authority" in caplog.text)
    assert len(api.asked) == 1
    assert (own / "agent.pem").read_bytes() == good
    # Nor does one without any ask in a storm.
    api = Signs(tmp_path / "new")
    running(Identity("n1", tls, tmp_path / "none"), api, lambda: len(api.asked) >= 2)
    assert len(api.asked) == 2


def test_authorities_that_can_not_be_read_cost_no_certificate(tls: Path, tmp_path: Path) -> None:
    own, api = tmp_path / "own", Signs(tls)
    running(Identity("n1", tls, own), api)
    (tls / "agents-ca.crt").write_bytes(b"half")
    running(Identity("n1", tls, own), api)
    assert len(api.asked) == 1
    assert (own / "agent.pem").is_file()


def test_without_a_certificate_it_signs_nothing_and_says_who_is_waited_for(
    tls: Path, tmp_path: Path
) -> None:
    identity = Identity("n1", tls, tmp_path / "own")
    assert issuer(identity.shown().certificate) == "CN=nobody"
    with pytest.raises(RetryableError, match="no certificate yet: the registry"):
        NodeSignatures(identity).sign(b"body")
    running(identity, Signs(tls))
    signatures = NodeSignatures(identity)
    assert signatures.opened(signatures.sign(b"body"), "it") == (b"body", "n1")


def test_one_that_has_ended_signs_until_the_next_is_there(tls: Path, tmp_path: Path) -> None:
    own, api = tmp_path / "own", Signs(tls, lasts_s=1.5)
    identity = Identity("n1", tls, own)
    running(identity, api)
    api.denies = True
    # Nobody is shown it.
    running(identity, api, lambda: issuer(identity.shown().certificate) == "CN=nobody")
    signatures = NodeSignatures(identity)
    signed = signatures.sign(b"body")
    assert signatures.opened(signed, "it") == (b"body", "n1")
    # Nor does the next agent of this node lose it.
    assert NodeSignatures(Identity("n1", tls, own)).sign(b"body")
    running(identity, Signs(tls), lambda: has(own) and not (own / "ended.pem").exists())
    assert [path.name for path in own.iterdir()] == ["agent.pem"]
    assert signatures.opened(signed, "it") == (b"body", "n1")


def test_a_refusal_is_told_and_asked_about_again(
    tls: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = Signs(tls)
    api.denies = True
    with caplog.at_level(logging.WARNING):
        running(Identity("n1", tls, tmp_path / "own"), api, lambda: len(api.asked) >= 2)
    assert "it was refused: node n1 is revoked" in caplog.text
    assert len(api.asked) == 2


def test_where_nobody_certifies_it_needs_a_mounted_one(
    tls: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tls / "agents-ca.crt").unlink()
    with pytest.raises(ConfigError, match="--node n1; or put agents-ca"):
        Identity("n1", tls, tmp_path / "own").shown()
    Folder(tls).init(["n1"], Validity(), datetime.now(UTC))
    identity = Identity("n1", tls)
    with caplog.at_level(logging.WARNING):
        asyncio.run(identity.run(Signs(tls)))
    assert "other nodes may hold" in caplog.text
    assert issuer(identity.shown().certificate) == "CN=kyb-ca"


def test_an_authority_that_comes_later_is_asked_without_a_restart(
    tls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kybernate.runtime.identity._AUTHORITY_S", 0.1)
    Folder(tls).init(["n1"], Validity(), datetime.now(UTC))
    authority, api = (tls / "agents-ca.crt").read_bytes(), Signs(tls)
    (tls / "agents-ca.crt").unlink()
    identity = Identity("n1", tls, tmp_path / "own")

    async def run() -> None:
        asking = asyncio.create_task(identity.run(api))
        await asyncio.sleep(0.3)
        assert api.asked == []
        (tls / "agents-ca.crt").write_bytes(authority)
        end = time.monotonic() + 20
        while issuer(identity.shown().certificate) != f"CN={keys.CN_AGENTS}":
            assert time.monotonic() < end, "it is not asked"
            await asyncio.sleep(0.01)
        asking.cancel()

    asyncio.run(run())


def test_who_is_believed_to_be_an_agent(tls: Path, tmp_path: Path) -> None:
    ca, agents = ((tls / f"{name}.crt").read_bytes() for name in ("ca", "agents-ca"))
    assert Identity("n1", tls).agents() == agents + ca
    assert Identity("n1", tls, shared=False).agents() == agents
    assert Identity("n1", tls).authorities() == ca + agents
    (tls / "agents-ca.crt").unlink()
    assert Identity("n1", tls, shared=False).agents() == ca
