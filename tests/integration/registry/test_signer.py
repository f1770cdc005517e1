"""The signer of agents' certificates: what a node that serves sees of it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kybernate.adapters.pki.requests import CSRS, make_request
from kybernate.runtime.revocations import Revocations
from nodeagent.api.guests import Guests
from registry.keys.signer import Signer
from tests.integration.hooks import until
from tests.integration.registry.identities import certified, door, services, tokens
from tests.kit.servers.registryserver import certificates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

__all__ = ["services", "tokens"]
pytestmark = pytest.mark.integration
B = "signed-b"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls"), [])


def test_a_certificate_is_renewed_while_the_agent_serves(
    control_plane: Cluster, tls: Path, tmp_path: Path, tokens: Callable[[str], Api], services: Path
) -> None:
    """At two thirds of its life; whoever connects from then on sees the new one."""
    api, revocations = control_plane.api("registry"), Revocations()
    revocations.start(api)
    signer = Signer(api, tls, 6.0, revocations)
    signer.start()
    try:
        with certified(B, services, tmp_path / "b", tokens(B)) as identity:

            async def run() -> None:
                async with door(identity, Guests(None, time.time)) as (port, _):
                    first = await asyncio.to_thread(_shown, port)
                    began = time.monotonic()
                    while await asyncio.to_thread(_shown, port) == first:
                        assert time.monotonic() - began < 15.0
                        await asyncio.sleep(0.1)

            asyncio.run(run())
    finally:
        signer.stop()
        revocations.stop()


def test_a_node_with_many_requests_gets_a_few_answered_and_holds_up_nobody(
    control_plane: Cluster, tls: Path, tokens: Callable[[str], Api]
) -> None:
    api, revocations = control_plane.api("registry"), Revocations()
    signer, theirs, own = Signer(api, tls, 600.0, revocations), tokens("many"), tokens("one")
    many = [_ask(theirs, "many") for _ in range(40)]
    single = _ask(own, "one")
    signer.start()
    try:
        # It answers nobody until it knows who is revoked.
        until(lambda: {*many, single} <= {*signer._open}, "not all were heard of")
        revocations.start(api)
        until(lambda: all(_became(api, name) for name in (*many, single)), "not all are answered")
    finally:
        signer.stop()
        revocations.stop()
    found = [_became(api, name) for name in many]
    assert found.count("signed") == 3
    assert {one for one in found if one != "signed"} == {"TooMany"}
    assert _became(api, single) == "signed"


def test_an_authority_that_comes_later_signs_what_waits(
    control_plane: Cluster, tls: Path, tmp_path: Path, tokens: Callable[[str], Api]
) -> None:
    api, revocations = control_plane.api("registry"), Revocations()
    revocations.start(api)
    signer, asked = Signer(api, tmp_path, 600.0, revocations), _ask(tokens("early"), "early")
    signer.start()
    try:
        until(lambda: asked in signer._open, "it was not heard of")
        time.sleep(1.0)
        assert _became(api, asked) == ""
        for name in ("agents-ca.key", "agents-ca.crt"):
            shutil.copyfile(tls / name, tmp_path / name)
        until(lambda: _became(api, asked) == "signed", "it is not signed")
    finally:
        signer.stop()
        revocations.stop()


def _ask(api: Api, node: str) -> str:
    wanted = make_request(node, ec.generate_private_key(ec.SECP256R1()))
    api.post(CSRS, wanted)
    return str(wanted["metadata"]["name"])


def _became(api: Api, name: str) -> str:
    status = api.get(f"{CSRS}/{name}").get("status") or {}
    if status.get("certificate"):
        return "signed"
    denied = (one["reason"] for one in status.get("conditions") or () if one["type"] == "Denied")
    return next(denied, "")


def _shown(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
