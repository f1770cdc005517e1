"""For whom a state may come from another node, and how much of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.checkpoint.places import read_manifest
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.errors import (
    DeadlineError,
    RefusedError,
    RetryableError,
)
from kybernate.ports import Handover
from kybernate.types import PodRef, PodUid, SeatState, Tier
from nodeagent.artifacts import awaited as awaited_module
from nodeagent.artifacts.awaited import Awaited
from nodeagent.migration import target
from tests.unit.checkpoint.kit import KEYS
from tests.unit.nodeagent.twonodes import LIMIT, POD, follow, two_nodes


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"wishes.restore": None}, RefusedError, "does not wait"),
        ({"wishes.restore": RestoreWish(uid=PodUid("other"))}, RefusedError, "does not wait"),
        ({"history.started_once": True}, RefusedError, "runs already"),
        ({"state": SeatState.ACTIVE}, RefusedError, "runs already"),
        ({"ending.terminating": True}, RefusedError, "is ending"),
        ({"contact.connected": False}, RetryableError, "isn't ready"),
    ],
)
async def test_a_seat_that_does_not_wait_for_it_takes_nothing(
    rig, tls, tmp_path, change, error, words
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        seat = two.r.node.seats[two.uid]
        for name, value in change.items():
            part, _, own = name.rpartition(".")
            setattr(getattr(seat, part) if part else seat, own, value)
        artifact = two.sealed(two.dump(1))
        for call in (
            peers.expect(two.to, LIMIT),
            peers.stage(two.to, artifact, LIMIT),
            peers.deliver(two.to, artifact, LIMIT),
            peers.let_continue(two.to, artifact, LIMIT),
        ):
            with pytest.raises(error, match=words):
                await call
        assert two.inbox.waiting() == frozenset()


@pytest.mark.real_time
async def test_a_successor_is_of_the_same_namespace_and_on_that_node(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        other = Handover(PodRef("team-b", "x", POD.uid), two.to.successor, two.to.node)
        with pytest.raises(RefusedError, match="of another namespace"):
            await peers.expect(other, LIMIT)
        gone = Handover(POD, PodRef("team-a", "x", PodUid("nobody")), two.to.node)
        with pytest.raises(RetryableError, match="no seat of a pod"):
            await peers.expect(gone, LIMIT)
        with pytest.raises(RefusedError, match="uid"):
            await peers.expect(Handover(PodRef("team-a", "x", PodUid("")), *_rest(two)), LIMIT)


def _rest(two):
    return two.to.successor, two.to.node


@pytest.mark.real_time
async def test_room_is_asked_for_before_anything_is_sent(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        total = read_manifest(two.here, artifact, KEYS).total
        offloading = two.r.node.world.offloading
        limits = {Tier.NVME: total}
        two.r.node.world = replace(two.r.node.world, offloading=replace(offloading, limits=limits))
        await peers.expect(two.to, LIMIT, size=total)
        words = f"of node n1 has room for {total} bytes, and the state of .* about {total + 1};"
        with pytest.raises(RefusedError, match=words):
            await peers.expect(two.to, LIMIT, size=total + 1)
        # What is sent anew has the room of what came before.
        await follow(two, peers, two.dump(2))
        await peers.expect(two.to, LIMIT, size=total)
        await peers.deliver(two.to, artifact, LIMIT)
        with pytest.raises(RefusedError, match="has room for 0 bytes"):
            await peers.expect(two.to, LIMIT, size=1)
        await peers.expect(two.to, LIMIT)


def test_whoever_calls_off_without_end_takes_a_fixed_room_and_nothing_from_seats_here():
    here = PodUid("here")
    node = SimpleNamespace(seats={here: ...}, world=SimpleNamespace(now=lambda: 0.0))
    awaited = Awaited(node, inbox=None, adopter=None, unsealed=int)
    awaited.called_off(POD.uid, here)
    for number in range(3 * awaited_module._MOST):
        awaited.called_off(PodUid("x"), PodUid(f"never-{number}"))
        assert len(awaited._off) <= awaited_module._MOST + 1
    assert POD.uid in awaited._off[here]
    assert PodUid(f"never-{number}") in awaited._off
    for number in range(100):
        awaited.called_off(PodUid(f"x-{number}"), here)
    assert len(awaited._off[here]) == awaited_module._MOST_OF_ONE
    assert PodUid(f"x-{number}") in awaited._off[here]


@pytest.mark.real_time
async def test_calls_that_nobody_waits_for_any_more_are_few(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        async with two.receiver.coming.one(two.uid):
            before = len(asyncio.all_tasks())
            for _ in range(100):
                call = asyncio.ensure_future(two.receiver.call_off(POD, two.uid))
                await asyncio.sleep(0)
                call.cancel()
            await asyncio.sleep(0.05)
            assert len(asyncio.all_tasks()) - before <= target._MOST_CALLS
            with pytest.raises(DeadlineError, match="ask again"):
                await peers.call_off(two.to, LIMIT)
        await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) - before <= 0
        await peers.call_off(two.to, LIMIT)
        assert not two.receiver._under_way


def test_a_call_off_for_a_successor_that_never_came_is_forgotten_in_the_end():
    now = [0.0]
    here, never, other = PodUid("here"), PodUid("never"), PodUid("other")
    node = SimpleNamespace(seats={here: ...}, world=SimpleNamespace(now=lambda: now[0]))
    awaited = Awaited(node, inbox=None, adopter=None, unsealed=int)
    for successor in (here, never):
        awaited.called_off(POD.uid, successor)
    now[0] = 3500.0
    awaited.called_off(POD.uid, other)
    assert awaited._off.keys() == {here, never, other}
    now[0] = 3700.0
    awaited.called_off(POD.uid, other)
    assert awaited._off.keys() == {here, other}
