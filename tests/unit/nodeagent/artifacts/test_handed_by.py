"""Whose word counts about a state that is handed over: that of the agent of its pod's own node."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.core.artifacts.holds import ARRIVED, Drop
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.errors import CorruptError, DeadlineError, RefusedError, RetryableError
from kybernate.ports import Handover, Line
from kybernate.types import NodeName, PodRef, PodUid, Tier
from tests.unit.nodeagent.twonodes import LIMIT, POD, delivered, follow, two_nodes

NO_SAY = "has no say in it"
OFF = "its move was called off"


def knows(two, line):
    """A registry that answers with this of each pod, or raises it."""

    async def answer(namespace, uid, deadline):
        if isinstance(line, Exception):
            raise line
        return line

    two.r.node.world = replace(two.r.node.world, registry=SimpleNamespace(line=answer))


async def refused(two, rogue, artifact):
    """No call about the pod's state counts."""
    for call in (
        rogue.expect(two.to, LIMIT),
        rogue.stage(two.to, artifact, LIMIT),
        follow(two, rogue, two.dump(3)),
        rogue.deliver(two.to, artifact, LIMIT),
        rogue.let_continue(two.to, artifact, LIMIT),
        rogue.call_off(two.to, LIMIT),
    ):
        with pytest.raises(RefusedError, match=NO_SAY):
            await call


@pytest.mark.real_time
@pytest.mark.parametrize("known", ["by the registry", "as the first", "as the first, before"])
async def test_what_was_handed_over_is_called_off_by_its_own_node_alone(rig, tls, tmp_path, known):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        rogue = two.peers("n2")
        if known == "by the registry":
            knows(two, Line(node="n1"))
        artifact = await delivered(two, peers)
        if known == "as the first, before":
            two.restarted()
            await two.server.stop(0)
            await two.serve()
        await refused(two, rogue, artifact)
        assert two.has(artifact)
        assert two.r.machine.journal[ARRIVED + artifact]["uid"] == POD.uid
        await peers.deliver(two.to, artifact, LIMIT)  # nothing was called off
        await peers.call_off(two.to, LIMIT)
        await two.until_gone(artifact)
        rogue.close()


@pytest.mark.real_time
async def test_a_node_that_is_first_has_no_say_in_a_pod_of_another_one(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        rogue = two.peers("n2")
        knows(two, Line(node="n1"))
        artifact = two.sealed(two.dump(1))
        await refused(two, rogue, artifact)
        await peers.deliver(two.to, artifact, LIMIT)
        assert two.has(artifact)
        rogue.close()


@pytest.mark.real_time
async def test_of_a_pod_that_the_registry_does_not_know_the_first_one_counts(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        rogue = two.peers("n2")
        knows(two, Line())
        await rogue.call_off(two.to, LIMIT)  # nothing has begun, so that it is nobody's first word
        await peers.expect(two.to, LIMIT)
        await refused(two, rogue, two.sealed(two.dump(1)))
        two.receiver.seat_gone(two.r.node.seats[two.uid])
        assert not two.receiver.awaited.began(POD.uid, two.uid)
        rogue.close()


@pytest.mark.real_time
async def test_nobody_elses_agent_speaks_for_a_pod_that_is_here(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, _):
        rogue, here = two.peers("n2"), PodRef(POD.namespace, "b", two.uid)
        with pytest.raises(RefusedError, match=NO_SAY):
            await rogue.call_off(Handover(here, two.to.successor, NodeName("n2")), LIMIT)
        rogue.close()


@pytest.mark.real_time
@pytest.mark.parametrize("error", [RetryableError("it restarts"), DeadlineError("no answer")])
async def test_while_the_registry_is_away_nothing_is_dropped(rig, tls, tmp_path, error):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        knows(two, error)
        with pytest.raises(type(error)):
            await peers.call_off(two.to, LIMIT)
        assert two.has(artifact)
        assert ARRIVED + artifact in two.r.machine.journal
        knows(two, Line(node="n1"))
        await peers.expect(two.to, LIMIT)
        knows(two, error)
        await peers.call_off(two.to, LIMIT)  # where a pod runs is known for good
        await two.until_gone(artifact)


@pytest.mark.real_time
@pytest.mark.parametrize("handed", [True, False])
async def test_who_delivers_what_is_not_its_own_takes_nothing_from_its_successor(
    rig, tls, tmp_path, handed
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        custody, rogue = two.r.loop.custody, two.peers("n2")
        if not handed:
            custody.withdraw(artifact)
        before, hands = custody.of(artifact), []
        real = custody.hand
        custody.hand = lambda hold: (hands.append(hold), real(hold))
        other = await two.r.seat("q", delay=0.0, restore=RestoreWish(uid=PodUid("mine")))
        seat, mine = two.r.node.seats[other], PodRef("default", "mine", PodUid("mine"))
        while not seat.contact.connected:  # noqa: ASYNC110 - the machine's time is real here
            await asyncio.sleep(0.01)
        to = Handover(mine, seat.identity.pod, NodeName("n2"))
        for words in (b"junk", two.outbox.signed(artifact)):
            with pytest.raises((RefusedError, CorruptError)):
                await two.receiver.deliver(mine, other, artifact, words)
        with pytest.raises(RefusedError):
            await rogue.deliver(to, artifact, LIMIT)
        await rogue.call_off(to, LIMIT)
        assert (custody.of(artifact), hands) == (before, [])
        assert two.has(artifact)
        rogue.close()


@pytest.mark.real_time
async def test_what_was_handed_as_another_pods_state_is_not_handed_on(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        custody = two.r.loop.custody
        before = replace(custody.of(artifact).transfer, uid="other")
        custody.hand(before)
        with pytest.raises(RefusedError, match="as another pod's state"):
            await peers.deliver(two.to, artifact, LIMIT)
        assert custody.of(artifact).transfer == before


@pytest.mark.real_time
@pytest.mark.parametrize("error", [CorruptError("damaged"), DeadlineError("slow"), OSError("full")])
async def test_a_delivery_that_fails_leaves_what_was_handed_before(
    rig, tls, tmp_path, monkeypatch, error
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        custody, signed = two.r.loop.custody, two.outbox.signed(artifact)
        before = custody.of(artifact)
        assert before.transfer.size > 0
        assert before.transfer.source == "n1"

        def fails(*_):
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(two.inbox, "accept", fails)
            with pytest.raises((CorruptError, DeadlineError, RetryableError)):
                await two.receiver.deliver(POD, two.uid, artifact, signed)
        assert custody.of(artifact) == before


@pytest.mark.real_time
async def test_a_drop_that_a_damaged_delivery_took_back_goes_on(rig, tls, tmp_path, monkeypatch):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact, custody = await delivered(two, peers), two.r.loop.custody

        tried, real, dropped = asyncio.Event(), two.vault.drop, Drop(OFF, (Tier.NVME,))

        def damaged(*_):
            assert custody.of(artifact).drop is None
            raise CorruptError("damaged")

        async def fails(*_, **__):
            tried.set()
            raise OSError("the disk refuses")

        two.vault.drop = fails
        custody.call_off(POD.uid, two.uid)
        await tried.wait()
        assert custody.of(artifact).drop == dropped
        monkeypatch.setattr(two.inbox, "accept", damaged)
        with pytest.raises(CorruptError):
            await two.receiver.deliver(POD, two.uid, artifact, two.outbox.signed(artifact))
        assert custody.of(artifact).drop == dropped
        two.vault.drop = real
        await two.until_gone(artifact)
