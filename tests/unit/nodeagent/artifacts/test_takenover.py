"""States that successors go on from which came from another node, and what is told of that."""

from __future__ import annotations

import pytest

from kybernate.core.artifacts import layout
from kybernate.core.artifacts.holds import ARRIVED
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.errors import (
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.types import PodRef, Tier
from nodeagent.migration.taken import TAKEN
from nodeagent.seat.offloading import whole_in
from nodeagent.seat.parts.saved import Begins
from tests.kit.machine import FakeJournal
from tests.unit.nodeagent.twonodes import LIMIT, POD, delivered, two_nodes


@pytest.mark.real_time
async def test_nobody_else_says_that_a_pod_of_this_node_ended(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, _):
        runs = await two.r.seat("a")
        two.r.node.seats[two.uid].wishes.restore = RestoreWish(uid=runs)
        pod = PodRef(POD.namespace, "a", runs)
        with pytest.raises(RefusedError, match="is on this node"):
            await two.receiver.let_continue(pod, two.uid, two.sealed(two.dump(1)))
        assert two.adopter.adopted == []


@pytest.mark.real_time
async def test_what_is_in_no_local_place_is_adopted_from_the_store(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        await peers.let_continue(two.to, artifact, LIMIT)
        assert two.adopter.adopted == [(two.uid, artifact, Tier.OBJECT)]


@pytest.mark.real_time
async def test_one_that_found_the_state_by_itself_has_taken_it_over(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        await peers.deliver(two.to, artifact, LIMIT)
        seat, lines = two.r.node.seats[two.uid], two.r.loop.registry
        seat.saved.begins, seat.history.started_once = Begins.ADOPTED, True
        with pytest.raises(RefusedError, match="runs already"):
            await peers.let_continue(two.to, artifact, LIMIT)
        await lines.stop(POD.namespace, POD.uid, "a test", LIMIT)
        await lines.claim(POD.namespace, POD.uid, artifact, two.uid, LIMIT)
        await peers.let_continue(two.to, artifact, LIMIT)
        assert two.adopter.adopted == []


@pytest.mark.real_time
async def test_a_state_of_which_a_power_cut_left_a_part_is_not_taken_over(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        await peers.deliver(two.to, artifact, LIMIT)
        spoilt = two.there.local / layout.folder(artifact) / "images" / "pages-1.img"
        spoilt.write_bytes(b"")
        two.restart()
        assert not await whole_in(two.inbox)(artifact)
        two.adopter.refuses = NotFoundError("not here")
        with pytest.raises(NotFoundError):
            await two.receiver.let_continue(POD, two.uid, artifact)
        assert not two.has(artifact)
        signed = two.outbox.signed(artifact)
        assert await two.receiver.deliver(POD, two.uid, artifact, signed)
        assert ARRIVED + artifact not in two.r.machine.journal


@pytest.mark.real_time
async def test_that_a_state_was_taken_over_is_told_once_it_is_on_the_disk(
    rig, tls, tmp_path, monkeypatch
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        put = FakeJournal.put

        def full(self, key, record, *, synced, late=False):
            if key.startswith(TAKEN):
                raise OSError(28, "No space left on device")
            return put(self, key, record, synced=synced)

        with monkeypatch.context() as patched:
            patched.setattr(FakeJournal, "put", full)
            for _ in range(2):
                with pytest.raises(RetryableError):
                    await peers.let_continue(two.to, artifact, LIMIT)
        await peers.let_continue(two.to, artifact, LIMIT)
        assert two.r.machine.journal[TAKEN + artifact] == {"successor": two.uid}
