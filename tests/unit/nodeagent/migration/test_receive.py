"""A state that comes from another node's agent: by real gRPC and mutual TLS, into a real folder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.checkpoint.places import read_manifest
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts.holds import ARRIVED
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.errors import (
    CorruptError,
    RefusedError,
)
from kybernate.lib.deadline import Deadline
from kybernate.ports import Handover
from kybernate.types import PodRef, PodUid, Tier
from nodeagent.migration.taken import TAKEN
from tests.unit.checkpoint.kit import KEYS
from tests.unit.nodeagent.twonodes import LIMIT, POD, Two, follow, two_nodes


@pytest.mark.real_time
async def test_a_state_comes_and_the_successor_goes_on(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        await peers.expect(two.to, LIMIT)
        before = two.sealed(two.dump(1))
        assert await peers.stage(two.to, before, LIMIT) > 0
        assert await peers.stage(two.to, before, LIMIT) == 0, "it is there already"
        images = two.dump(1)
        sent = await follow(two, peers, images)
        artifact = two.sealed(images, 2)
        await peers.deliver(two.to, artifact, LIMIT)
        manifest = read_manifest(two.there, artifact, KEYS)
        verify(two.there, manifest, KEYS, Deadline(LIMIT))
        assert sent < manifest.total
        await peers.let_continue(two.to, artifact, LIMIT)
        await peers.let_continue(two.to, artifact, LIMIT)
        assert two.adopter.adopted == [(two.uid, artifact, Tier.NVME)]
        assert two.adopter.of == [POD]
        assert two.r.machine.journal[TAKEN + artifact] == {"successor": two.uid}
        assert two.inbox.waiting() == frozenset()


@pytest.mark.real_time
@pytest.mark.parametrize("name", ["/proc/self/environ", "../pieces", "../../../keys", ""])
async def test_the_other_end_is_sent_files_of_the_state_alone(rig, tls, tmp_path, name):
    two = Two(rig, tls, tmp_path)
    artifact = two.sealed(two.dump(1))
    with pytest.raises(RefusedError, match="is no file of"):
        list(two.outbox.whole(artifact, iter([name]), Deadline(LIMIT)))


@pytest.mark.real_time
async def test_what_was_never_followed_is_delivered_whole(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        await peers.deliver(two.to, artifact, LIMIT)
        verify(two.there, read_manifest(two.there, artifact, KEYS), KEYS, Deadline(LIMIT))


@pytest.mark.real_time
async def test_bytes_that_rot_on_the_way_are_never_kept(rig, tls, tmp_path, monkeypatch):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        real = two.inbox.accept

        def rotten(pod, successor, name, signed):
            for path in (two.inbox._home(successor)).glob("images/pages-*"):
                path.write_bytes(b"rotten")
                two.inbox._files[successor].pop(path.name, None)
            return real(pod, successor, name, signed)

        monkeypatch.setattr(two.inbox, "accept", rotten)
        with pytest.raises(CorruptError, match="arrived otherwise"):
            await peers.deliver(two.to, artifact, LIMIT)
        assert not two.inbox.is_here(artifact)
        await peers.call_off(two.to, LIMIT)
        assert two.inbox.waiting() == frozenset()


@pytest.mark.real_time
async def test_the_registry_hears_of_what_is_whole_and_of_what_is_not(rig, tls, tmp_path):
    """Of what is whole, that it is one to go on from once the sender says so, and not before: till
    then its pod may go on over there."""

    async with two_nodes(rig, tls, tmp_path) as (two, _):
        told = []
        two.r.node.world = replace(two.r.node.world, registry=object())
        two.r.loop.reports.put = lambda report: told.append((report.kind.value, report.why != ""))
        artifact = two.sealed(two.dump(1))
        signed = two.outbox.signed(artifact)
        assert await two.receiver.deliver(POD, two.uid, artifact, signed)
        incoming = two.inbox.receiving(two.uid, "")
        names = iter(path.name for path in sorted(two.here.local.rglob("*.img")))
        for part in two.outbox.whole(artifact, names, Deadline(LIMIT)):
            incoming.take(part)
        incoming.close()
        assert not await two.receiver.deliver(POD, two.uid, artifact, signed)
        two.inbox.see_whole(artifact)
        assert told == [("dropped", True), ("copying", False)]
        await two.receiver.let_continue(POD, two.uid, artifact)
        assert told[2] == ("copied", False)


@pytest.mark.real_time
async def test_what_is_not_the_pods_own_is_neither_kept_nor_noted(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        two.r.node.seats[two.uid].wishes.restore = RestoreWish(uid=PodUid("copy"))
        copy = PodRef(POD.namespace, "copy", PodUid("copy"))
        to = Handover(copy, two.to.successor, two.to.node)
        with pytest.raises(RefusedError, match="is a state of pod team-a/5e1f, not of team-a"):
            await peers.deliver(to, artifact, LIMIT)
        assert not two.has(artifact)
        assert ARRIVED + artifact not in two.r.machine.journal


@pytest.mark.real_time
async def test_what_arrives_after_its_move_was_called_off_is_not_kept(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        await peers.expect(two.to, LIMIT)
        await peers.call_off(two.to, LIMIT)
        with pytest.raises(RefusedError, match="was called off"):
            await peers.deliver(two.to, artifact, LIMIT)
        assert not two.has(artifact)
        assert ARRIVED + artifact not in two.r.machine.journal
        await peers.expect(two.to, LIMIT)
        await peers.deliver(two.to, artifact, LIMIT)
        assert two.has(artifact)
