"""What pods request whose seats are offloaded: given back, noted, and taken again, whoever dies or
is slow in between."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.api.pods import read_pod
from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from kybernate.types import PodRef, PodUid, SeatState
from nodeagent.kube.resizes import Resizes, lowered, noted, why_not_there

if TYPE_CHECKING:
    Json = dict[str, Any]

pytestmark = pytest.mark.real_time

MUCH = {"cpu": "4", "memory": "8Gi"}
LEAST = {"cpu": "10m", "memory": "64Mi"}
PATH = "/api/v1/namespaces/shop/pods/a"


def pod(requests: Json = MUCH, qos: str = "Burstable", **container: Any) -> Json:
    one = {"name": "c", "resources": {"requests": {**requests, "x.y/z": "1"}}, **container}
    status = {"name": "c", "allocatedResources": dict(requests)}
    return {
        "metadata": {"namespace": "shop", "name": "a", "uid": "u1", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "other"}, one]},
        "status": {"qosClass": qos, "containerStatuses": [status]},
    }


class Identity:
    pod = PodRef("shop", "a", PodUid("u1"))
    container = "c"


class Seat:
    """What is looked at of one."""

    identity, uid, state = Identity, PodUid("u1"), SeatState.ACTIVE


class World:
    """An API server with one pod, and its kubelet. Implements `ports.KubeApi`."""

    def __init__(self) -> None:
        self.pod, self.calls = pod(), []
        self.errors: dict[str, list[Exception]] = {}
        self.room = True
        self.resizes = Resizes(self._api, 0.5)
        self.seat: Any = Seat()

    async def _api(self) -> Any:
        return self

    @property
    def requests(self) -> Json:
        found = self.pod["spec"]["containers"][1]["resources"]["requests"]
        return {name: found[name] for name in LEAST}

    @property
    def note(self) -> Json | None:
        return noted(read_pod(self.pod))

    def get(self, path: str, params: Any = None, *, timeout: float) -> Json:
        assert path == PATH
        return copy.deepcopy(self.pod)

    def patch(self, path: str, body: Json, kind: str, *, timeout: float) -> Json:
        what = path.removeprefix(PATH) or "note"
        self.calls.append(what)
        if self.errors.get(what):
            raise self.errors[what].pop(0)
        meta, told = self.pod["metadata"], body["metadata"]
        assert told["uid"] == meta["uid"]
        if told.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            raise ConflictError("changed")
        before = copy.deepcopy(self.pod)
        if what == "note":
            notes = {**meta.get("annotations", {}), **body["metadata"]["annotations"]}
            meta["annotations"] = {name: one for name, one in notes.items() if one is not None}
        else:
            (one,) = body["spec"]["containers"]
            assert (kind, one["name"]) == ("strategic", "c")
            there = self.pod["spec"]["containers"][1]["resources"]["requests"]
            there |= one["resources"]["requests"]
            self.reserve()
        if self.pod != before:
            meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        return copy.deepcopy(self.pod)

    def reserve(self) -> None:
        """The kubelet looks at the pod."""
        grows = self.requests != LEAST
        told = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no"}
        self.pod["status"]["conditions"] = [told] if grows and not self.room else []
        if not grows or self.room:
            self.pod["status"]["containerStatuses"][0]["allocatedResources"] = self.requests

    async def goes(self, state: SeatState) -> None:
        self.seat.state = state
        self.resizes.seat_changed(self.seat)
        await asyncio.gather(*self.resizes._tasks.values(), return_exceptions=True)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("state", [SeatState.PARKED_NVME, SeatState.PARKED_OBJECT])
async def test_below_ram_it_is_given_back_and_taken_before_the_wake(
    world: World, state: SeatState
) -> None:
    await world.goes(SeatState.PARKED)
    assert (world.requests, world.calls) == (MUCH, []), "in RAM its processes need it"
    await world.goes(state)
    assert (world.requests, world.note) == (LEAST, MUCH)
    await world.goes(state)
    assert world.calls == ["note", "/resize"], "it is told of again and again"
    world.seat.state = SeatState.RESTORING
    world.resizes.seat_changed(world.seat)
    await world.resizes.take(world.seat)
    assert (world.requests, world.note) == (MUCH, None)
    assert world.pod["spec"]["containers"][1]["resources"]["requests"]["x.y/z"] == "1"
    await world.resizes.take(world.seat)
    assert len(world.calls) == 4, "there is nothing to take"


@pytest.mark.parametrize(
    ("found", "least"),
    [
        (pod(), LEAST),
        (pod({"cpu": "0.005", "memory": "1Gi"}), {"cpu": "0.005", "memory": "64Mi"}),
        (pod({"cpu": "10m", "memory": "64Mi"}), None),
        (pod({"memory": "1e9"}), {"memory": "64Mi"}),
        (pod(qos="Guaranteed"), None),
        (pod(qos="BestEffort"), None),
        (pod(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]), None),
        (pod(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}]), LEAST),
    ],
)
def test_what_is_given_back(found: Json, least: Json | None) -> None:
    assert lowered(read_pod(found), "c") == least


@pytest.mark.parametrize("note", ["", "null", "[", "[1]", '{"cpu": 1}', '{"x": "1"}'])
def test_a_note_that_says_nothing_is_none(note: str) -> None:
    found = pod()
    found["metadata"]["annotations"] = {keys.REQUESTS: note}
    assert noted(read_pod(found)) is None


def test_what_is_reserved_is_the_same_however_it_is_written() -> None:
    found = read_pod(pod({"cpu": "4000m", "memory": str(8 << 30)}))
    assert why_not_there(found, "c", MUCH) == ""
    assert "not reserved" in why_not_there(found, "c", {"cpu": "5"})


async def test_a_wake_waits_for_room_and_says_what_its_kubelet_says(world: World) -> None:
    await world.goes(SeatState.PARKED_NVME)
    world.room = False
    with pytest.raises(RetryableError, match="does not get them again: Deferred: no"):
        await world.resizes.take(world.seat)
    assert world.note == MUCH, "what it had is known"
    await world.goes(SeatState.PARKED_NVME)
    assert world.requests == LEAST, "others may have it till the next try"
    taking = asyncio.create_task(world.resizes.take(world.seat))
    await asyncio.sleep(0.1)
    world.room = True
    world.reserve()
    await taking
    assert (world.requests, world.note) == (MUCH, None)


async def test_a_quota_that_others_have_used_up_is_waited_for(world: World) -> None:
    """Its state stays: a refusal would say that the state can't be used."""
    await world.goes(SeatState.PARKED_NVME)
    world.errors["/resize"] = [RefusedError("exceeded quota: shop")]
    with pytest.raises(RetryableError, match="exceeded quota"):
        await world.resizes.take(world.seat)
    await world.resizes.take(world.seat)
    assert world.requests == MUCH


async def test_an_agent_that_died_after_the_note_begins_again(world: World) -> None:
    world.pod["metadata"]["annotations"] = {keys.REQUESTS: json.dumps(MUCH)}
    await world.goes(SeatState.PARKED_NVME)
    assert (world.calls, world.requests, world.note) == (["/resize"], LEAST, MUCH)


async def test_an_agent_that_died_before_its_seat_left_the_tier_takes_it_again(
    world: World,
) -> None:
    """Such as with its container."""
    await world.goes(SeatState.PARKED_NVME)
    world.resizes = Resizes(world._api, 0.5)
    await world.goes(SeatState.WAITING)
    assert (world.requests, world.note) == (MUCH, None)


async def test_what_somebody_else_changed_meanwhile_is_what_it_wakes_with(world: World) -> None:
    await world.goes(SeatState.PARKED_NVME)
    await world.resizes.take(world.seat)
    more = {"cpu": "6", "memory": "9Gi"}
    world.pod["spec"]["containers"][1]["resources"]["requests"] |= more
    world.pod["metadata"]["resourceVersion"] = "77"
    world.pod["metadata"]["annotations"] = {keys.REQUESTS: json.dumps(MUCH)}
    await world.goes(SeatState.PARKED_NVME)
    assert world.note == more


async def test_a_wake_waits_for_calls_that_give_back(world: World) -> None:
    asked = world.patch

    def slow(path: str, body: Json, kind: str, *, timeout: float) -> Json:
        if not path.endswith("/resize"):
            time.sleep(0.2)
        return asked(path, body, kind, timeout=timeout)

    world.patch = slow  # type: ignore[method-assign]
    world.seat.state = SeatState.PARKED_NVME
    world.resizes.seat_changed(world.seat)
    await asyncio.sleep(0.05)
    await world.resizes.take(world.seat)
    await asyncio.gather(*world.resizes._tasks.values())
    assert (world.requests, world.note) == (MUCH, None)


async def test_another_pod_of_the_name_is_left_alone(world: World) -> None:
    world.pod["metadata"]["uid"] = "u2"
    await world.goes(SeatState.PARKED_NVME)
    assert world.calls == []
    with pytest.raises(NotFoundError):
        await world.resizes.take(world.seat)


async def test_what_may_not_be_resized_stays_as_it_is(world: World) -> None:
    """Such as by an API server that is older, or by a LimitRange."""
    world.errors["/resize"] = [RefusedError("pods/resize is not known")]
    await world.goes(SeatState.PARKED_NVME)
    assert world.requests == MUCH
    await world.resizes.take(world.seat)
    assert (world.requests, world.note) == (MUCH, None)
    world.resizes.seat_gone(world.seat)
    assert not world.resizes._rests
