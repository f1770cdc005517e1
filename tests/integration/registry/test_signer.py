"""The signer of agents' certificates: what a node that serves sees of it."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING

import pytest

from kybernate.runtime.revocations import Revocations
from nodeagent.api.guests import Guests
from registry.signer import Signer
from tests.integration.registry.identities import certified, door, services, tokens
from tests.kit.registryserver import certificates

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


def _shown(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
