"""Which new pod continues from what was evicted, and that no other one does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from extender.bind.binder import Binder
from extender.bind.consulted import Consulted
from extender.http.app import Verbs
from extender.http.wire import BindArgs
from extender.state.evicted import Evicted
from kybernate import keys
from kybernate.core.requests.checkpoint import Target
from kybernate.errors import ConflictError, NotFoundError, RetryableError
from kybernate.types import NodeName, PodRef, PodUid
from tests.unit.extender.objects import gpu_node, pod, read_pod

if TYPE_CHECKING:
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from tests.unit.extender.conftest import Clock, FakeCluster

NOW = 1_767_225_700.0
STAMP = "2026-01-01T00:00:00Z"


class Api:
    """The API server's requests: a patch needs the version that it was made for."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.gets = 0

    def get(self, path: str, *, timeout: float) -> dict[str, Any]:
        self.gets += 1
        name = path.removeprefix("/api/v1/nodes/")
        if name not in self.nodes:
            raise NotFoundError(f"there is no node {name}")
        return self.nodes[name]

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


def test_what_no_node_tells_of_any_more_its_gone_successor_has_used(site: Site) -> None:
    site.evicted("old-a")
    first = site.new("p1")
    assert site.known.claim(first) == "old-a"
    site.told(site.known)
    site.snapshot.pod_event("DELETED", pod("p1"))
    assert site.known.claim(site.new("p2")) == "", "both would be copies of one pod"


def test_who_may_hand_its_claim_on_is_waited_for_until_it_is_gone(site: Site) -> None:
    """It is ending, and has not continued yet, or else its state would be dropped."""
    row = {"artifact": "default/a@20260101T000000Z-00000001", "uid": "old-a"}
    saved = [{**row, "tier": "object", "bytes": 7}]
    site.snapshot.node_event("MODIFIED", gpu_node("n1", saved=saved))
    site.evicted("old-a", node="n1")
    assert site.known.claim(site.new("p1")) == "old-a"
    site.told(site.known)
    leaving = pod("p1", node="n2")
    leaving["metadata"]["deletionTimestamp"] = STAMP
    site.snapshot.pod_event("MODIFIED", leaving)
    late, second = made(site, "p3", created=STAMP), made(site, "p2")
    assert site.known.claim(late) == "", "not for ever"
    with pytest.raises(RetryableError, match="still ending"):
        site.known.claim(second)
    site.snapshot.pod_event("DELETED", leaving)
    assert site.known.claim(second) == "old-a"


# --- pods that are lost ---------------------------------------------------------------------------

JUST_NOW = "2026-01-01T00:01:38Z"
SAVED = {"artifact": "default/a@20260101T000000Z-00000001", "uid": "q", "tier": "object"}


def leaver(site: Site, **status: Any) -> dict[str, Any]:
    """A pod of `rs` on n1 that is being deleted, or has that status."""
    item = pod("q", uid="q", node="n1", phase=status.pop("phase", "Running"))
    item["status"] |= status
    item["metadata"]["ownerReferences"] = [{"controller": True, "kind": "ReplicaSet", "uid": "rs"}]
    if not status:
        item["metadata"]["deletionTimestamp"] = STAMP
    site.snapshot.pod_event("MODIFIED", item)
    return item


def node(site: Site, ready: str = "True", *taints: str) -> None:
    site.api.nodes["n1"] = {
        "metadata": {"name": "n1"},
        "spec": {"taints": [{"key": one} for one in taints]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def made(site: Site, name: str, created: str = JUST_NOW) -> Any:
    """A pod that was made in its place, at that time."""
    item = pod(name)
    item["metadata"]["creationTimestamp"] = created
    item["metadata"]["ownerReferences"] = [{"controller": True, "kind": "ReplicaSet", "uid": "rs"}]
    site.snapshot.pod_event("ADDED", item)
    return read_pod(item)


def lost(site: Site, reason: str, *, done: bool) -> None:
    """What the controller says of it."""
    site.evicted("q", node="n1")
    item = site.api.items.pop("evict-q")
    item["metadata"]["name"] = "lost-q"
    item["spec"]["requestedBy"] = keys.CONTROLLER_USER
    item["status"]["conditions"][0]["reason"] = reason
    if not done:
        del item["status"]["completionTime"], item["status"]["artifact"]
    site.api.items["lost-q"] = item
    site.known.requests.on_event("DELETED", {"metadata": {**item["metadata"], "name": "evict-q"}})
    site.told(site.known)


@pytest.mark.parametrize(
    ("ready", "taints"),
    [("Unknown", ()), ("False", ()), ("True", ("node.kubernetes.io/out-of-service",)), ("", ())],
)
def test_whether_a_pod_is_lost_with_its_node_is_waited_for(
    site: Site, ready: str, taints: tuple[str, ...]
) -> None:
    site.snapshot.node_event("MODIFIED", gpu_node("n1"))
    leaver(site)
    if ready:
        node(site, ready, *taints)
    second = made(site, "p1")
    with pytest.raises(RetryableError, match="lost"):
        site.known.claim(second)
    lost(site, "AgentUnreachable", done=False)
    with pytest.raises(RetryableError, match="lost"):
        site.known.claim(second)
    lost(site, "Evicted", done=True)
    assert site.known.claim(second) == "q", "the registry knows more than the node told"
    assert site.api.items["lost-q"]["metadata"]["annotations"] == {keys.SUCCESSOR: "uid-p1"}


def test_what_is_known_to_be_saved_of_a_lost_pod_is_waited_for_on_the_successors_node(
    site: Site,
) -> None:
    site.snapshot.node_event("MODIFIED", gpu_node("n1", saved=[{**SAVED, "bytes": 7}]))
    leaver(site)
    lost(site, "AgentUnreachable", done=False)
    assert site.known.claim(made(site, "p1")) == "q"


def test_of_a_pod_that_is_drained_and_lost_one_continues(site: Site) -> None:
    site.snapshot.node_event("MODIFIED", gpu_node("n1", saved=[{**SAVED, "bytes": 7}]))
    leaver(site)
    site.evicted("q", node="n1")
    drained = site.api.items["evict-q"]
    lost(site, "Evicted", done=True)
    site.api.items["evict-q"] = {**drained, "metadata": {**drained["metadata"], "name": "evict-q"}}
    site.told(site.known)
    assert site.known.claim(made(site, "p1")) == "q"
    site.told(site.known)
    assert site.known.claim(made(site, "p2")) == ""


def test_of_a_lost_pod_without_artifacts_the_next_one_begins_anew(site: Site) -> None:
    leaver(site)
    lost(site, "PodEnded", done=True)
    assert site.known.claim(made(site, "p1")) == ""


def test_one_that_its_kubelet_failed_is_waited_for_on_a_node_that_is_well(site: Site) -> None:
    node(site)
    leaver(site, phase="Failed", reason="UnexpectedAdmissionError")
    second = made(site, "p1")
    with pytest.raises(RetryableError):
        site.known.claim(second)
    lost(site, "Evicted", done=True)
    assert site.known.claim(second) == "q"


def test_one_that_its_kubelet_failed_is_waited_for_though_it_is_deleted_at_once(
    site: Site, clock: Clock
) -> None:
    """As a StatefulSet does, which makes the next one in the same moment."""
    node(site)
    item = leaver(site, phase="Failed", reason="UnexpectedAdmissionError")
    site.snapshot.pod_event("DELETED", item)
    second = made(site, "p1")
    with pytest.raises(RetryableError):
        site.known.claim(second)
    clock.now += 61
    assert site.known.claim(second) == "", "nobody said that it is lost"


def test_one_that_its_kubelet_failed_and_that_is_gone_has_a_successor(site: Site) -> None:
    node(site)
    site.snapshot.pod_event(
        "DELETED", leaver(site, phase="Failed", reason="UnexpectedAdmissionError")
    )
    lost(site, "Evicted", done=True)
    assert site.known.claim(made(site, "p1")) == "q"


def stateful(name: str, uid: str, **more: Any) -> dict[str, Any]:
    """A StatefulSet's pod."""
    item = pod(name, uid=uid, **more)
    owner = {"controller": True, "kind": "StatefulSet", "uid": "sts"}
    item["metadata"] |= {"ownerReferences": [owner], "creationTimestamp": JUST_NOW}
    return item


def failed_at_once(site: Site, uid: str, name: str = "q-0") -> None:
    """Its kubelet fails it, and it is deleted."""
    item = stateful(name, uid, node="n1", phase="Failed")
    item["status"]["reason"] = "UnexpectedAdmissionError"
    site.snapshot.pod_event("MODIFIED", item)
    site.snapshot.pod_event("DELETED", item)


def next_of(site: Site, uid: str = "next", name: str = "q-0") -> Any:
    item = stateful(name, uid)
    site.snapshot.pod_event("ADDED", item)
    return read_pod(item)


@pytest.mark.parametrize(
    ("tier", "passed", "source"),
    [("object", 61, "q"), ("object", 601, ""), ("nvme", 61, "")],
)
def test_a_controller_that_was_away_when_it_failed_costs_no_state(
    site: Site, clock: Clock, tier: str, passed: int, source: str
) -> None:
    """The pod that failed is gone when the controller is back, and it makes no request."""
    saved = [{**SAVED, "tier": tier, "bytes": 7}]
    site.snapshot.node_event("MODIFIED", gpu_node("n1", saved=saved))
    failed_at_once(site, "q")
    failed_at_once(site, "other", "q-1")
    second = next_of(site)
    with pytest.raises(RetryableError):
        site.known.claim(second)
    clock.now += passed
    assert site.known.claim(second) == source


def test_of_several_that_failed_the_last_with_an_artifact_is_continued(
    site: Site, clock: Clock
) -> None:
    rows = [
        {**SAVED, "uid": uid, "artifact": f"default/a@20260101T00000{at}Z-00000001", "bytes": 7}
        for at, uid in enumerate(("q", "r"))
    ]
    site.snapshot.node_event("MODIFIED", gpu_node("n1", saved=rows))
    for uid in ("q", "r", "never-ran"):
        failed_at_once(site, uid)
    clock.now += 61
    assert site.known.claim(next_of(site)) == "r"


def test_what_the_controller_has_said_of_it_counts(site: Site, clock: Clock) -> None:
    site.snapshot.node_event("MODIFIED", gpu_node("n1", saved=[{**SAVED, "bytes": 7}]))
    failed_at_once(site, "q")
    lost(site, "PodEnded", done=True)
    item = site.api.items["lost-q"]
    item["status"]["owner"] = next_of(site).succession
    site.told(site.known)
    clock.now += 61
    assert site.known.claim(next_of(site)) == ""


def test_it_is_waited_for_whatever_fails_of_another_tenant(site: Site) -> None:
    node(site)
    item = leaver(site, phase="Failed", reason="UnexpectedAdmissionError")
    site.snapshot.pod_event("DELETED", item)
    one = read_pod({**item, "metadata": {**item["metadata"], "namespace": "noisy"}})
    for number in range(5001):
        ref = replace(one.ref, uid=PodUid(f"n{number}"))
        site.snapshot.take_pod("DELETED", replace(one, ref=ref))
    with pytest.raises(RetryableError):
        site.known.claim(made(site, "p1"))


def test_one_that_its_kubelet_failed_long_ago_holds_up_no_other(site: Site, clock: Clock) -> None:
    """It stays until somebody deletes it, longer than the controller's request for it."""
    item = leaver(site, phase="Failed", reason="Evicted")
    clock.now += 61
    site.snapshot.pod_event("MODIFIED", item)
    assert site.known.claim(made(site, "p1")) == ""


def test_of_many_pods_that_go_each_node_is_looked_at_once(site: Site) -> None:
    node(site)
    for number in range(5):
        item = pod(f"q{number}", node="n1", phase="Running")
        owner = {"controller": True, "kind": "ReplicaSet", "uid": "rs"}
        item["metadata"] |= {"ownerReferences": [owner], "deletionTimestamp": STAMP}
        site.snapshot.pod_event("MODIFIED", item)
    assert site.known.claim(made(site, "p1")) == ""
    assert site.known.claim(made(site, "p2")) == ""
    assert site.api.gets == 1


@pytest.mark.parametrize("status", [{}, {"phase": "Failed"}, {"phase": "Succeeded"}])
def test_a_pod_that_somebody_deletes_or_that_ends_by_itself_holds_up_no_other(
    site: Site, status: dict[str, str]
) -> None:
    node(site)
    leaver(site, **status)
    assert site.known.claim(made(site, "p1")) == ""


def test_nobody_waits_longer_than_a_minute_for_the_controller(site: Site) -> None:
    leaver(site)
    assert site.known.claim(made(site, "p1", "2026-01-01T00:00:30Z")) == ""


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


def preempted(site: Site, waiter: str = "uid-new", by: str = keys.CONTROLLER_USER) -> None:
    """A pod of n1 has made room for the waiter."""
    site.evicted("gone", node="n1", requestedBy=by)
    item = site.api.items.pop("evict-gone")
    item["metadata"]["name"] = f"preempt-{waiter}-gone"
    site.known.requests.on_event("ADDED", item)


def waits(site: Site, priority: int, name: str = "new", **more: Any) -> SeatPod:
    item = pod(name, **more)
    item["spec"]["priority"] = priority
    site.snapshot.pod_event("ADDED", item)
    return read_pod(item)


def test_room_that_was_made_is_kept_from_less_important_pods(snapshot: Snapshot) -> None:
    site = Site(snapshot)
    low, equal = waits(site, 0, "low"), waits(site, 10, "equal")
    new = waits(site, 10)
    assert site.known.kept_from(low) == {}
    preempted(site)
    why = "room is being made there for pod default/new of priority 10"
    assert site.known.kept_from(low) == {"n1": why}
    assert site.known.kept_from(equal) == site.known.kept_from(new) == {}
    waits(site, 10, node="n1", notes={keys.ASSIGNED_GROUP: "G0"})
    assert site.known.kept_from(low) == {}, "it has come"


def test_room_is_kept_for_pods_that_come_and_by_nobody_elses_word(snapshot: Snapshot) -> None:
    site = Site(snapshot)
    low = waits(site, 0, "low")
    preempted(site)
    assert site.known.kept_from(low) == {}, "nobody waits"
    waits(site, 10)
    preempted(site, by="system:serviceaccount:lab:somebody")
    assert site.known.kept_from(low) == {}
    preempted(site)
    assert list(site.known.kept_from(low)) == ["n1"]
    site.known._wall = lambda: NOW + 300.0
    assert site.known.kept_from(low) == {}, "not for ever"


def test_filter_leaves_out_a_node_that_is_kept_and_says_why(
    snapshot: Snapshot, cluster: FakeCluster
) -> None:
    snapshot.node_event("ADDED", gpu_node("n2"))
    site = Site(snapshot)
    waits(site, 10)
    low = pod("low")
    waits(site, 0, "low")
    heard: list[Any] = []
    consulted = Consulted(
        kept_from=site.known.kept_from, heard=lambda one, names: heard.append((one.ref.name, names))
    )
    binder = Binder(snapshot, cluster, lambda: STAMP, 60.0)
    verbs = Verbs(snapshot, binder, consulted)
    preempted(site)

    def asked(*names: str) -> Any:
        return verbs.filter({"Pod": low, "NodeNames": list(names)})

    found = asked("n1", "n2")
    assert (found["NodeNames"], list(found["FailedNodes"])) == (["n2"], ["n1"])
    assert "of priority 10" in found["FailedNodes"]["n1"]
    assert asked("n1")["NodeNames"] == []
    assert heard == [("low", ["n1"])]


def test_a_pod_that_left_while_nobody_watched_is_waited_for_no_more(snapshot: Snapshot) -> None:
    site = Site(snapshot)
    leaving = pod("old", node="n1")
    leaving["metadata"] |= {
        "ownerReferences": [{"controller": True, "kind": "ReplicaSet", "uid": "rs"}],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    snapshot.pod_event("ADDED", leaving)
    # Watcher._list, with names_only: it is not in the second list.
    names = ("namespace", "name", "uid", "resourceVersion")
    meta = {one: leaving["metadata"][one] for one in names if one in leaving["metadata"]}
    snapshot.pod_event("DELETED", {"metadata": meta})
    assert snapshot.replaced("default", "rs", 60.0) == ()
    # Long after, its node is taken out of the cluster (the fake API has no node n1).
    assert site.known.claim(replace(site.new("fresh"), created=NOW)) == ""
