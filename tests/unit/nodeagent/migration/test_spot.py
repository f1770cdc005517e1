"""A spot instance that goes is evacuated once, within the time that its cloud leaves."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY

from kybernate.adapters.spot import aws, gce
from kybernate.core.seat.operations import Kind, Progress
from kybernate.errors import RetryableError
from kybernate.types import Tier
from nodeagent.migration.spot import SpotWatch
from tests.kit.servers.metadata import Metadata
from tests.unit.nodeagent.migration.test_evacuations import BOTH, begun, ended


@pytest.fixture
def metadata():
    found = Metadata()
    yield found
    found.stop()


def test_aws_is_asked_with_a_token_and_tells_when(metadata):
    assert aws(metadata.address, 0.0, 5.0) is None
    assert [one.split()[0] for one in metadata.asked] == ["PUT", "GET"]
    for said in ("1970-01-01T00:02:00Z", "1970-01-01T00:02:00"):
        metadata.goes = said
        assert aws(metadata.address, 0.0, 5.0) == 120.0


def test_google_tells_half_a_minute_before(metadata):
    assert gce(metadata.address, 100.0, 5.0) is None
    metadata.goes = "yes"
    assert gce(metadata.address, 100.0, 5.0) == 130.0


@pytest.mark.parametrize("ask", [aws, gce])
@pytest.mark.parametrize("status", [200, 401, 500])
def test_what_is_no_answer_is_no_notice(metadata, ask, status):
    metadata.status, metadata.goes = status, "soon"
    with pytest.raises(RetryableError, match=metadata.address):
        ask(metadata.address, 0.0, 5.0)


def test_nor_is_a_time_that_is_none_or_a_server_that_is_not_there(metadata):
    metadata.goes = "soon"
    with pytest.raises(RetryableError, match="can't be read"):
        aws(metadata.address, 0.0, 5.0)
    metadata.stop()
    for ask in (aws, gce):
        with pytest.raises(RetryableError, match="does not answer"):
            ask(metadata.address, 0.0, 5.0)


class Cloud:
    """Says that the instance goes at this time of the node's clock, None for never."""

    def __init__(self):
        self.goes_at, self.fails, self.asked = None, False, 0

    def __call__(self, address, now, timeout):
        self.asked += 1
        if self.fails:
            raise RetryableError("away")
        return self.goes_at


async def watched(rig, tiers=BOTH, tell=lambda *_: None):
    r, operations, _ = await begun(rig, tiers, tell=tell)
    cloud = Cloud()
    watch = SpotWatch(cloud, "there:80", "boot", r.node, operations)
    return r, operations, cloud, asyncio.ensure_future(watch.run())


def evacuations(operations):
    return [one for one in operations.known(ended_too=True) if one.kind is Kind.EVACUATE]


async def test_it_is_evacuated_within_the_time_that_is_left(rig):
    told = []
    tell = lambda *event: told.append(event)  # noqa: E731 - a list's append takes one
    r, operations, cloud, watching = await watched(rig, tell=tell)
    cloud.fails = True
    await asyncio.sleep(10)
    cloud.fails = False
    await asyncio.sleep(10)
    assert evacuations(operations) == []
    notices = REGISTRY.get_sample_value("kyb_agent_spot_notices_total")
    told.clear()
    cloud.goes_at = r.node.world.wall() + 120
    await asyncio.sleep(5)
    (one,) = evacuations(operations)
    assert (one.name, one.by) == ("spot-boot", "cloud")
    assert "the cloud takes this instance away in 1" in one.why
    assert r.node.draining
    await ended(one)
    assert one.state is Progress.SUCCEEDED, one.sentence
    assert one.ended_at < cloud.goes_at - 2
    ((kind, reason, sentence),) = told
    assert (kind, reason) == ("Normal", "EvacuationSucceeded")
    assert "all 3 are saved" in sentence
    assert all(line in sentence for line in one.report)
    asked = cloud.asked
    await asyncio.sleep(20)
    assert (len(evacuations(operations)), cloud.asked) == (1, asked)
    assert REGISTRY.get_sample_value("kyb_agent_spot_notices_total") == notices + 1
    watching.cancel()


async def test_an_agent_that_was_restarted_finds_it_under_way(rig):
    r, operations, cloud, watching = await watched(rig)
    cloud.goes_at = r.node.world.wall() + 60
    await asyncio.sleep(3)
    watching.cancel()
    again = SpotWatch(cloud, "there:80", "boot", r.node, operations)
    await again.look()
    assert len(evacuations(operations)) == 1


async def test_without_an_object_store_nothing_is_begun_and_nothing_breaks(rig):
    r, operations, cloud, watching = await watched(rig, {Tier.NVME: 1 << 40})
    cloud.goes_at = r.node.world.wall() + 60
    await asyncio.sleep(5)
    assert evacuations(operations) == []
    assert not watching.done()
    watching.cancel()
