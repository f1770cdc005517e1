"""Models whose Deployments are scaled to zero, as requests tell of them; how one is roused."""

from __future__ import annotations

import asyncio

import pytest

from kybernate import keys
from kybernate.core.tiers.tiers import Artifact
from kybernate.errors import DeadlineError, RefusedError, RetryableError
from kybernate.types import Tier
from proxy.aside.asleep import Asleep


class Desk:
    def __init__(self):
        self.told, self.wakes = [], {}

    def asleep(self, models):
        models = list(models)
        self.told.append(sorted(one.route for one in models))
        self.wakes = {one.pod: (one.tier, one.size, round(one.wake, 3)) for one in models}


class Api:
    """`fails`: what the next calls are answered with."""

    def __init__(self):
        self.patched, self.fails = [], []

    def patch(self, path, body, *, timeout):
        self.patched.append(path.rpartition("/")[2])
        assert list(body["metadata"]["annotations"]) == [keys.WANTED]
        if self.fails:
            raise self.fails.pop()


def item(
    pod="u1", model="oak", reason="Evicted", by=keys.CONTROLLER_USER, up=None, size=0, **notes
):
    uid = f"r-{pod}"
    status = {
        "operation": f"ckpt-{uid}",
        "conditions": [{"type": "Complete", "reason": reason}],
        "artifact": {"tier": "object", "bytes": size},
        "podUID": pod,
        "scaledUpTime": up,
    }
    return {
        "metadata": {
            "namespace": "shop",
            "name": f"zero-{pod}",
            "uid": uid,
            "annotations": {keys.MODEL: model, **notes},
            "ownerReferences": [{"kind": "Deployment", "name": "web"}],
        },
        "spec": {"pod": "web-1-a", "mode": "Evict", "tier": "object", "requestedBy": by},
        "status": status,
    }


async def test_models_are_those_whose_pods_are_to_come_again():
    found = Asleep(Api(), Desk())
    found._take("ADDED", item())
    assert found._desk.told[-1] == ["shop/oak"]
    for other in (
        item("u2", "elm", by="mallory"),
        item("u3", "elm", "Running"),
        item("u4", "", "Evicted"),
        item("u5", "elm", **{keys.SUCCESSOR: "u9"}),
        {**item("u6", "elm"), "spec": {"mode": "Fly"}},
    ):
        found._take("ADDED", other)
        assert found._desk.told[-1] == ["shop/oak"]
    found._take("MODIFIED", item(**{keys.SUCCESSOR: "u9"}))
    found._take("MODIFIED", item(up="2026-11-28T01:02:03Z", **{keys.SUCCESSOR: "u9"}))
    assert found._desk.told[-1] == ["shop/oak"], "no agent tells of the next pod's seat yet"
    await asyncio.sleep(200)
    assert found._desk.told[-1] == []
    found._take("ADDED", item("u7", "elm"))
    found._take("DELETED", item("u7", "elm"))
    assert found._desk.told[-2:] == [["shop/elm"], []]


async def done(found):
    while found._tasks:
        await asyncio.gather(*found._tasks.values())


@pytest.mark.real_time
async def test_one_request_of_a_model_is_written_once():
    found = Asleep(Api(), Desk())
    for pod in ("u1", "u2"):
        found._take("ADDED", item(pod))
    found._api.fails = [RetryableError("away")]
    for _ in range(5):
        found.rouse("shop/oak")
    await done(found)
    assert found._api.patched == ["zero-u1", "zero-u1"]
    found._take("MODIFIED", item(**{keys.WANTED: "now"}))
    found.rouse("shop/oak")
    found.rouse("shop/elm")
    await done(found)
    assert len(found._api.patched) == 2


@pytest.mark.real_time
async def test_what_is_refused_is_tried_again_with_the_next_request_only():
    found = Asleep(Api(), Desk())
    found._take("ADDED", item())
    found._api.fails = [RefusedError("no")]
    found.rouse("shop/oak")
    await done(found)
    assert len(found._api.patched) == 1
    found.rouse("shop/oak")
    await done(found)
    assert len(found._api.patched) == 2
    await found.stop()


@pytest.mark.real_time
async def test_one_that_was_scaled_up_before_and_has_no_successor_keeps_none_asleep():
    found = Asleep(Api(), Desk())
    before = item("u1", up="2026-01-01T00:00:00Z", **{keys.WANTED: "then"})
    found._take("ADDED", before)
    found.rouse("shop/oak")
    await done(found)
    assert found._api.patched == [], "its pods are on their way"
    found._take("ADDED", item("u2"))
    found.rouse("shop/oak")
    await done(found)
    assert found._api.patched == ["zero-u2"]


class Records:
    """Says where artifacts lie; None stands for nobody's answer."""

    def __init__(self, **lies):
        self.lies, self.asked = lies, []

    async def copies(self, namespace, uid):
        assert namespace == "shop"
        self.asked.append(uid)
        await asyncio.sleep(0.01)
        if self.lies[uid] is None:
            raise DeadlineError("away")
        return tuple(Artifact(tier, size) for tier, size in self.lies[uid])


class Quiet:
    """A watch that hears nothing."""

    def start(self):
        pass


GB = 10**9


async def test_a_wake_is_told_by_what_the_request_says_and_sooner_by_a_nearer_copy():
    records = Records(u1=[(Tier.OBJECT, 3 * GB), (Tier.NVME, 3 * GB)], u2=[], u3=None)
    found = Asleep(Api(), Desk(), records)
    found._watch = Quiet()
    for pod, size in (("u1", 3 * GB), ("u2", 6 * GB), ("u3", 0)):
        one = item(pod, pod, size=size)
        one["spec"]["pod"] = pod
        found._take("ADDED", one)
    first = {"u1": ("object", 3 * GB, 11.0), "u2": ("object", 6 * GB, 21.0), "u3": ("", 0, 0.0)}
    assert found._desk.wakes == first
    found.start()
    await asyncio.sleep(0.9)
    assert found._desk.wakes == {**first, "u1": ("nvme", 3 * GB, 2.7)}
    records.lies["u1"], records.lies["u3"] = [], [(Tier.OBJECT, 3 * GB)]
    await asyncio.sleep(100)
    assert records.asked == ["u1", "u2", "u3", "u3"], "each now and then, what nobody said sooner"
    again = item("u1", "u1", size=3 * GB, **{keys.WANTED: "now"})
    again["spec"]["pod"] = "u1"
    found._take("MODIFIED", again)
    assert found._desk.wakes["u1"] == ("nvme", 3 * GB, 2.7)
    assert found._desk.wakes["u3"] == ("object", 3 * GB, 11.0)
    await asyncio.sleep(300)
    assert found._desk.wakes["u1"] == ("object", 3 * GB, 11.0)
    found._asking.cancel()
