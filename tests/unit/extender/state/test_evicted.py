"""Which new pod continues from what was evicted, and that no other one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from extender.bind.binder import Binder
from extender.bind.consulted import Consulted
from extender.http.app import Verbs
from extender.http.wire import BindArgs
from extender.state.evicted import Evicted
from kybernate import keys
from kybernate.core.requests.checkpoint import Target
from kybernate.errors import ConflictError, RetryableError
from kybernate.types import NodeName, PodRef, PodUid
from tests.unit.extender.objects import gpu_node, pod, read_pod

if TYPE_CHECKING:
    from extender.state.snapshot import Snapshot
    from tests.unit.extender.conftest import FakeCluster

NOW = 1_767_225_700.0
STAMP = "2026-01-01T00:00:00Z"


class Api:
    """The API server's requests: a patch needs the version that it was made for."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}

    def patch(self, path: str, body: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        item = self.items[path.rpartition("/")[2]]
        if body["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            raise ConflictError("it was changed")
        item["metadata"]["annotations"] = body["metadata"]["annotations"]
        item["metadata"]["resourceVersion"] += "1"
        return item


class Site:
    def __init__(self, snapshot: Snapshot) -> None:
        self.api, self.snapshot = Api(), snapshot
        self.known = self.replica()

    def replica(self) -> Evicted:
        made = Evicted(self.api, self.snapshot, 1.0, lambda: NOW)  # type: ignore[arg-type]
        made.requests.watch.synced.set()
        return made

    def evicted(self, uid: str, owner: str = "rs", node: str = "away", **spec: Any) -> None:
        condition = {"type": "Complete", "status": "True", "reason": "Evicted", "message": ""}
        self.api.items[f"evict-{uid}"] = {
            "metadata": {
                "namespace": "default",
                "name": f"evict-{uid}",
                "uid": f"of-{uid}",
                "resourceVersion": "1",
                "creationTimestamp": STAMP,
            },
            "spec": {"pod": "before", "mode": "Evict", "tier": "object", **spec},
            "status": {
                "podUID": uid,
                "node": node,
                "owner": owner,
                "operation": f"ckpt-of-{uid}",
                "completionTime": STAMP,
                "artifact": {"name": "", "tier": "object", "bytes": 7},
                "conditions": [condition],
            },
        }
        self.told(self.known)

    def told(self, replica: Evicted) -> None:
        for item in self.api.items.values():
            replica.requests.on_event("MODIFIED", item)

    def new(self, name: str, owner: str = "rs", **more: Any) -> Any:
        item = pod(name, **more)
        reference = {"controller": True, "kind": "ReplicaSet", "uid": owner}
        item["metadata"]["ownerReferences"] = [reference]
        self.snapshot.pod_event("ADDED", item)
        return read_pod(item)


@pytest.fixture
def site(snapshot: Snapshot) -> Site:
    return Site(snapshot)


def test_each_state_has_one_successor_whoever_binds_it(site: Site) -> None:
    first, second, third = (site.new(name) for name in ("p1", "p2", "p3"))
    assert site.known.claim(first) == ""
    site.evicted("old-a")
    site.evicted("old-b")
    assert site.known.claim(first) == "old-a"
    with pytest.raises(ConflictError):
        site.known.claim(second)  # its watch is yet to tell of that
    site.told(site.known)
    assert site.known.claim(second) == "old-b"
    other = site.replica()
    site.told(other)
    assert [other.claim(one) for one in (first, second, third)] == ["old-a", "old-b", ""]
    assert site.api.items["evict-old-a"]["metadata"]["annotations"] == {
        keys.SUCCESSOR: "uid-p1",
    }


def test_pods_of_others_and_those_that_say_themselves_begin_as_they_are(site: Site) -> None:
    site.evicted("old-a")
    assert site.known.claim(site.new("p1", owner="other")) == ""
    assert site.known.claim(read_pod(pod("p2"))) == ""
    own = site.new("p3", notes={keys.RESTORE_FROM: "pod/else"})
    assert site.known.claim(own) == ""
    assert "annotations" not in site.api.items["evict-old-a"]["metadata"]


def test_while_the_evicted_pod_is_there_nobody_takes_its_place(site: Site) -> None:
    before = pod("before", uid="old-a", node="n1")
    site.snapshot.pod_event("ADDED", before)
    site.evicted("old-a")
    scaled_up = site.new("p1")
    assert site.known.claim(scaled_up) == ""
    before["metadata"]["deletionTimestamp"] = STAMP
    site.snapshot.pod_event("MODIFIED", before)
    assert site.known.claim(scaled_up) == "old-a"


def test_what_its_node_no_longer_has_is_nobody_s(site: Site) -> None:
    site.evicted("old-a", node="n1")
    new = site.new("p1")
    assert site.known.claim(new) == "", "woken since, it ended with its pod"
    row = {"artifact": "default/a@20260101T000000Z-00000001", "uid": "old-a"}
    saved = [{**row, "tier": "object", "bytes": 7}]
    site.snapshot.node_event("MODIFIED", gpu_node("n1", saved=saved))
    assert site.known.claim(new) == "old-a"


def test_a_pod_that_the_watch_has_not_told_of_waits_for_it(site: Site) -> None:
    site.evicted("old-a")
    item = pod("p1")
    owner = {"controller": True, "kind": "ReplicaSet", "uid": "rs"}
    item["metadata"]["ownerReferences"] = [owner]
    with pytest.raises(RetryableError):
        site.known.claim(read_pod(item))


def test_only_who_may_continue_waits_for_the_first_list(site: Site) -> None:
    mine, alone = site.new("p1"), read_pod(pod("p2"))
    site.known.requests.watch.synced.clear()
    with pytest.raises(RetryableError, match="first list of CheckpointRequests"):
        site.known.claim(mine)
    assert site.known.claim(alone) == ""
    site.known.requests.watch.last_error = "CheckpointRequests: there is no such kind"
    assert site.known.claim(mine) == ""


def test_pods_with_names_continue_under_theirs(site: Site) -> None:
    site.evicted("old-a", owner="sts/web-1")
    item = pod("web-0")
    item["metadata"]["ownerReferences"] = [
        {"controller": True, "kind": "StatefulSet", "uid": "sts"},
    ]
    site.snapshot.pod_event("ADDED", item)
    assert site.known.claim(read_pod(item)) == ""
    item["metadata"] |= {"name": "web-1", "uid": "uid-web-1"}
    site.snapshot.pod_event("ADDED", item)
    assert site.known.claim(read_pod(item)) == "old-a"


def test_a_request_that_goes_or_changes_is_forgotten(site: Site) -> None:
    site.evicted("old-a")
    item = site.api.items["evict-old-a"]
    site.known.requests.on_event("MODIFIED", {**item, "spec": {"mode": "Fly"}})
    assert site.known.claim(site.new("p1")) == ""
    site.told(site.known)
    site.known.requests.on_event("DELETED", item)
    site.known.requests.on_event("DELETED", item)
    assert site.known.claim(site.new("p1")) == ""


def test_what_a_successor_left_that_never_ran_is_the_next_ones(site: Site) -> None:
    row = {"artifact": "default/a@20260101T000000Z-00000001", "uid": "old-a"}
    saved = [{**row, "tier": "object", "bytes": 7}]
    site.snapshot.node_event("MODIFIED", gpu_node("n1", saved=saved))
    site.evicted("old-a", node="n1")
    assert site.known.claim(site.new("p1")) == "old-a"
    site.told(site.known)
    second = site.new("p2")
    assert site.known.claim(second) == "", "the first one is there"
    site.snapshot.pod_event("DELETED", pod("p1"))
    assert site.known.claim(second) == "old-a"
    site.told(site.known)
    site.snapshot.pod_event("DELETED", pod("p2"))
    site.snapshot.node_event("MODIFIED", gpu_node("n1"))
    assert site.known.claim(site.new("p3")) == "", "the second one ran: it was dropped"


def test_a_successor_is_bound_where_its_eviction_says_while_it_fits(
    site: Site, snapshot: Snapshot, cluster: FakeCluster
) -> None:
    """n1 has G0 and G1, of two seats each; best-fit would take G0."""
    snapshot.node_event("ADDED", gpu_node("n2"))
    bound = {}
    consulted = Consulted(continues=site.known.claim, target=site.known.target)
    binder = Binder(snapshot, cluster, lambda: STAMP, 60.0, consulted=consulted)
    verbs = Verbs(snapshot, binder, consulted)
    for number in range(3):
        site.evicted(f"u{number}", f"rs{number}", successor={"node": "n1", "group": "G1"})
        item = pod(f"next{number}")
        reference = {"controller": True, "kind": "ReplicaSet", "uid": f"rs{number}"}
        item["metadata"]["ownerReferences"] = [reference]
        snapshot.pod_event("ADDED", cluster.add(item))
        asked = {"Pod": item, "NodeNames": ["n1", "n2"]}
        answer: Any = verbs.filter(asked)
        nodes = answer["NodeNames"]
        ref = PodRef("default", f"next{number}", PodUid(f"uid-next{number}"))
        assert binder.bind(BindArgs(ref, NodeName(nodes[0]))) == ""
        notes = cluster.pods["default", f"next{number}"]["metadata"]["annotations"]
        assert notes[keys.RESTORE_FROM] == f"pod/u{number}"
        bound[number] = nodes, notes[keys.ASSIGNED_GROUP]
    assert bound[0] == bound[1] == (["n1"], "G1")
    nodes, group = bound[2]
    assert (sorted(nodes), group) == (["n1", "n2"], "G0")


def test_who_requires_another_group_itself_goes_there(site: Site, snapshot: Snapshot) -> None:
    site.evicted("u1", successor={"node": "n1", "group": "G1"})
    made = site.new("next", notes={keys.REQUIRE_GROUP: "G0"})
    target = site.known.target(made)
    assert target == Target("n1", "G1")
    assert made.aimed(target).demand.require_group == "G0"
    assert site.known.target(site.new("other", owner="rs9")) is None
