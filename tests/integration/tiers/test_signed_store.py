"""A real tree goes to a real object store and back on a node that has no credentials for it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.keys.nodesignatures import Authorities, NodeSignatures
from kybernate.checkpoint.places import open_place
from kybernate.core.artifacts.layout import ARTIFACTS, INDEX, PACKS
from kybernate.types import SeatState, Tier
from tests.kit.servers import s3
from tests.kit.servers.registryserver import Server, certificates

from .test_tiers import Client, quiet, room, short

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kybernate.adapters.objects.objects import StoreObjects

    from .room import Room

__all__ = ["room", "short"]

pytestmark = pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-")
SECRET = "AWS_SECRET_ACCESS_KEY"


@dataclass
class Signed:
    """A room whose agent asks a registry, and the store as its owner sees it."""

    room: Room
    server: Server
    owner: StoreObjects


@pytest.fixture
def signed(room: Room, tmp_path: Path) -> Iterator[Signed]:
    with s3.server(tmp_path / "s3") as store, pytest.MonkeyPatch.context() as patched:
        for name, value in store.environment.items():
            patched.setenv(name, value)
        tls = certificates(tmp_path / "tls", ("n1",))
        url = f"sqlite:///{tmp_path}/registry.db"
        server = Server(tls, tmp_path / "registry.log", url, OBJECT_STORE=store.url)
        owner = open_place(store.url).objects
        for name in store.environment:
            patched.delenv(name)
        server.start()
        server.client().settle("new")
        # No key that all nodes share: this one signs by its own.
        (room.settings.artifact_keys / "sign.key").unlink()
        changes = {"object_store": store.url, "registry_url": server.url, "tls_dir": tls}
        room.settings = room.settings.model_copy(update=changes)
        try:
            yield Signed(room, server, owner)  # type: ignore[arg-type]
        finally:
            server.stop()


@pytest.mark.real_time
async def test_a_tree_comes_back_from_a_store_that_its_node_can_not_open(signed: Signed) -> None:
    room, client = signed.room, Client()
    seat = await room.begin(SeatState.ACTIVE)
    assert room.loop is not None
    telling = asyncio.ensure_future(room.loop.reports.run())
    assert SECRET not in os.environ
    _, who = await client.ask()
    await quiet()
    room.park(Tier.OBJECT)
    await room.until(SeatState.PARKED_OBJECT)
    kinds = (ARTIFACTS, PACKS, INDEX)
    stored = [info.key for kind in kinds for info in signed.owner.scan(f"{kind}default/")]
    assert len(stored) >= 3
    (manifest,) = (key for key in stored if key.startswith(ARTIFACTS))
    proven = NodeSignatures(Authorities(signed.server.tls))
    found = proven.opened(bytes(signed.owner.get(manifest)), manifest)
    assert found is not None
    assert found[1] == "n1"
    assert signed.server.client().signers(seat.saved.artifact).nodes == ["n1"]
    assert await client.ask() == (2, who), "the connection that was open before"
    # The registry goes away: what lies in RAM and on NVMe needs it not.
    signed.server.kill()
    await quiet()
    room.park(Tier.NVME)
    await room.until(SeatState.PARKED_NVME)
    assert await client.ask() == (3, who)
    telling.cancel()
    client.close()
    await room.end()
