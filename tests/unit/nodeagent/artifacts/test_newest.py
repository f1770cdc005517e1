"""Without a registry: which state of a pod is its newest, by what this node's places list."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kybernate.errors import NotFoundError, RetryableError
from kybernate.ports import Sealed
from kybernate.types import PodUid, Tier
from nodeagent.artifacts.newest import Newest

UID, OTHER = PodUid("5e1f"), PodUid("77aa")
OLD, NEW = (f"team-a/llama-0@20260131T1{hour}0000Z-00000001" for hour in (1, 2))
LATE = "team-a/llama-0@20260131T130000Z-00000001"
ANOTHERS = "team-a/gemma-0@20260131T130000Z-00000001"


def unread(artifact):
    return Sealed(artifact, PodUid(""), 0, verified=False, unread=True)


async def found(*nvme, store=()):
    listed = {Tier.NVME: nvme, Tier.OBJECT: store}

    async def ls(tier):
        return tuple(listed[tier])

    node = SimpleNamespace(world=SimpleNamespace(registry=None))
    offloading = SimpleNamespace(limits=listed, vault=SimpleNamespace(ls=ls))
    custody = SimpleNamespace(is_dropping=lambda _: False)
    return await Newest(node, None, custody).find(offloading, "team-a", UID)


OWN = [Sealed(OLD, UID, 1), Sealed(NEW, UID, 1), Sealed(LATE, OTHER, 1)]


async def test_the_newest_of_the_pod_itself():
    assert await found(*OWN) == NEW
    with pytest.raises(NotFoundError):
        await found(Sealed(LATE, OTHER, 1))


async def test_none_while_one_that_can_not_be_read_may_be_newer():
    with pytest.raises(RetryableError, match=f"{NEW} can't be read now"):
        await found(Sealed(OLD, UID, 1), unread(NEW))
    with pytest.raises(RetryableError, match="can't be read now"):
        await found(unread(NEW))


async def test_one_that_can_not_be_read_and_is_surely_not_newer_holds_nobody_up():
    assert await found(Sealed(NEW, UID, 1), unread(OLD)) == NEW
    assert await found(*OWN, unread(ANOTHERS)) == NEW
    assert await found(Sealed(OLD, UID, 1), unread(NEW), store=[Sealed(NEW, UID, 1)]) == NEW
