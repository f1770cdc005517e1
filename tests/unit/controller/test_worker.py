"""A look at a request: what is written, when it is due again, and what a deletion does."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from controller import seen, service
from controller.base.kinds import CHECKPOINT
from controller.base.known import Requests
from controller.base.queue import Queue
from controller.base.worker import RequestWorker
from controller.checkpoints.agents import Sweep
from controller.checkpoints.worker import CheckpointCarrier
from kybernate import keys
from kybernate.api.requests import dump_status
from kybernate.api.watched.slim import slim_request
from kybernate.core.policy.effective import Policy, PutAway
from kybernate.core.requests.asked import Copied
from kybernate.core.requests.checkpoint import (
    Operation,
    Outcome,
    PodFacts,
    Problem,
    Remnant,
    Trouble,
)
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.turns import Limits, no_policy
from kybernate.core.seat.operations import Progress
from kybernate.errors import ConflictError, RefusedError, RetryableError
from kybernate.settings.controller import ControllerSettings

KEY = ("shop", "once")
NAME = "ckpt-r1"
_PATIENCE = 30.0
LIMITS = {"snapshots": 2, "limits": Limits(of_node=2), "governing": no_policy}


def item(**spec):
    return {
        "metadata": {
            "namespace": "shop",
            "name": "once",
            "uid": "r1",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"pod": "a", "mode": "Park", "deadlineSeconds": 600, **spec},
    }


class World:
    """The API server and the agents. `broken` holds errors to raise at the next writes."""

    def __init__(self):
        self.item = item()
        self.broken, self.told, self.removed, self.calls, self.lefts = [], [], [], [], []
        self.operations, self.pods = {}, {"a": PodFacts("u1", "n1", seat=True, ended=False)}
        self.away = self.shut = False
        self.budget, self.lost, self.left, self.looked = "", {}, None, []
        self.ended = threading.Event()
        self.version = 1

    # --- Cluster
    def pod(self, _namespace, name):
        return self.pods.get(name)

    def held_back(self, _namespace, _name):
        if isinstance(self.budget, Exception):
            raise self.budget
        return self.budget

    def write(self, seen, status, now):
        if self.broken:
            raise self.broken.pop()
        if seen.version != self.item["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        self.version += 1
        meta = {**self.item["metadata"], "resourceVersion": str(self.version)}
        told = dump_status(status, seen.status, seen.generation, now)
        self.item = {**self.item, "metadata": meta, "status": told}
        return self.item

    def remove(self, request):
        self.removed.append(request.uid)

    def tell(self, _request, reason, _message):
        self.told.append(reason)

    # --- LostPods and Remains
    def pinned(self, request):
        return self.lost.get(request.name)

    def of(self, request, pod, *, silent):
        assert silent is self.away
        if isinstance(self.left, Exception):
            raise self.left
        self.looked.append((request.status.pod_uid, pod))
        return self.left

    # --- Agents
    def find(self, _node, name):
        return Problem(Trouble.UNREACHABLE, "away") if self.away else self.operations.get(name)

    def begin(self, request, left):
        self.lefts.append(left)
        self.calls.append(("begin", request.status.operation))
        if self.away:
            return Problem(Trouble.UNREACHABLE, "away")
        name = request.status.operation
        return self.operations.setdefault(name, Operation(Progress.RUNNING, "it is parking"))

    def cancel(self, _node, name):
        self.calls.append(("cancel", name))
        if self.away:
            return Problem(Trouble.UNREACHABLE, "away")
        if name in self.operations:
            before = self.operations[name]
            cancelled = replace(before, state=Progress.CANCELLED, sentence="it was cancelled")
            self.operations[name] = cancelled
        return self.operations.get(name)

    def ends(self, _node, _name, _within):
        return self.ended.wait(_PATIENCE)

    def own(self, _node):
        if self.away:
            raise RetryableError("away")
        return [n for n, one in self.operations.items() if one.state is Progress.RUNNING]

    # --- Fence, Nodes
    def closed(self):
        return "another leads" if self.shut else None

    def check(self):
        if self.shut:
            raise RetryableError("another leads")

    def names(self):
        return ["n1"]


@pytest.fixture
def world():
    found = World()
    yield found
    found.ended.set()


@pytest.fixture
def requests(world):
    found = Requests(CHECKPOINT, lambda _key: None)
    found.on_event("ADDED", world.item)
    return found


@pytest.fixture
def clock():
    return [1767225600.0]  # as creationTimestamp


@pytest.fixture
def queue():
    return Queue()


def worker_of(queue, requests, *parts, **limits):
    """`parts`: what the carrier acts with, of which the first is the cluster, then the fence and
    the clock."""
    carrier = CheckpointCarrier(queue, requests, *parts, **limits)
    return RequestWorker(carrier, queue, requests, parts[0], *parts[-2:])


@pytest.fixture
def worker(world, requests, queue, clock):
    return worker_of(queue, requests, *[world] * 5, lambda: clock[0], **LIMITS)


def reasons(world):
    (condition,) = world.item["status"]["conditions"]
    return condition["status"], condition["reason"]


def test_it_is_pinned_begun_followed_and_told_of(world, worker):
    worker.look(KEY)
    assert world.item["status"]["podUID"] == "u1"
    assert world.calls == []
    worker.look(KEY)
    assert reasons(world) == ("False", "Running")
    world.operations[NAME] = Operation(Progress.SUCCEEDED, "it is parked")
    worker.look(KEY)
    assert reasons(world) == ("True", "Parked")
    assert world.item["status"]["completionTime"]
    assert world.told == [Reason.PENDING, Reason.RUNNING, Reason.PARKED]
    worker.look(KEY)
    assert world.calls == [("begin", NAME)]


def test_the_end_of_what_is_under_way_has_it_looked_at_at_once(world, requests, clock):
    """However long it has taken, and however seldom it is looked at by then: somebody waits."""
    stands_still = Queue(lambda: 0.0)
    worker = worker_of(stands_still, requests, *[world] * 5, lambda: clock[0], **LIMITS)
    worker.look(KEY)
    worker.look(KEY)
    assert stands_still.get() == KEY, "the pin was written"
    stands_still.done(KEY)
    assert len(stands_still) == 0
    world.ended.set()
    assert stands_still.get() == KEY


def test_nothing_is_asked_before_the_pin_is_written(world, worker):
    world.broken = [RetryableError("the API server is away")]
    with pytest.raises(RetryableError):
        worker.look(KEY)
    assert world.calls == []
    worker.look(KEY)
    assert world.calls == []


def test_a_write_that_met_a_change_is_no_harm(world, worker, requests):
    worker.look(KEY)
    stale = world.item
    worker.look(KEY)
    requests.on_event("MODIFIED", stale)
    world.operations[NAME] = Operation(Progress.SUCCEEDED, "done")
    with pytest.raises(ConflictError):
        worker.look(KEY)
    requests.on_event("MODIFIED", world.item)
    worker.look(KEY)
    assert reasons(world) == ("True", "Parked")
    assert world.calls == [("begin", NAME)]


def test_a_deletion_cancels_what_is_under_way(world, worker, requests):
    worker.look(KEY)
    worker.look(KEY)
    requests.on_event("DELETED", world.item)
    worker.look(KEY)
    assert world.calls[-1] == ("cancel", NAME)
    assert world.operations[NAME].state is Progress.CANCELLED


def test_another_one_of_the_name_does_not_inherit_the_operation(world, worker, requests):
    worker.look(KEY)
    worker.look(KEY)
    other = item()
    other["metadata"] |= {"uid": "r2", "resourceVersion": "9"}
    world.item = other
    requests.on_event("MODIFIED", other)
    worker.look(KEY)
    assert world.calls[-1] == ("cancel", NAME)
    assert world.item["status"]["operation"] == "ckpt-r2"


def test_an_answer_about_one_that_is_gone_hides_no_new_one_of_its_name(world, worker, requests):
    late, seen = world.item, requests.get(KEY)
    other = item()
    other["metadata"] |= {"uid": "r2", "resourceVersion": "9"}
    requests.on_event("DELETED", late)
    requests.on_event("ADDED", other)
    requests.wrote(seen, late)
    assert requests.get(KEY).request.uid == "r2"


def test_an_answer_that_comes_late_hides_nothing_that_the_watch_has_told_since(world, requests):
    seen, answer = requests.get(KEY), item()
    answer["metadata"]["resourceVersion"] = "8"
    later = item()
    later["metadata"]["resourceVersion"] = "9"
    requests.on_event("MODIFIED", later)
    requests.wrote(seen, answer)
    assert requests.get(KEY).version == "9"


def test_the_sweep_finds_what_nobody_was_told_of(world, worker, requests):
    worker.look(KEY)
    worker.look(KEY)
    sweep = Sweep(requests, world, world, world, 60.0)
    sweep.sweep(threading.Event())
    assert world.operations[NAME].state is Progress.RUNNING
    world.away = True
    requests.on_event("DELETED", world.item)
    worker.look(KEY)
    sweep.sweep(threading.Event())
    world.away, world.shut = False, True
    sweep.sweep(threading.Event())
    assert world.operations[NAME].state is Progress.RUNNING
    world.shut = False
    sweep.sweep(threading.Event())
    assert world.operations[NAME].state is Progress.CANCELLED


def test_who_does_not_lead_does_nothing(world, worker):
    worker.look(KEY)
    world.shut = True
    with pytest.raises(RetryableError):
        worker.look(KEY)
    assert world.calls == []


def test_at_the_deadline_it_is_cancelled_and_says_so(world, worker, clock):
    worker.look(KEY)
    worker.look(KEY)
    assert world.lefts == [600.0]
    clock[0] += 600
    worker.look(KEY)
    assert world.calls[-1] == ("cancel", NAME)
    assert reasons(world) == ("False", "DeadlineExceeded")


def test_an_agent_that_is_away_is_asked_again(world, worker, queue):
    worker.look(KEY)
    world.away = True
    worker.look(KEY)
    assert reasons(world) == ("False", "AgentUnreachable")
    world.away = False
    worker.look(KEY)
    assert reasons(world) == ("False", "Running")


def test_what_has_ended_is_removed_in_time(world, worker, requests, clock):
    world.item["spec"]["ttlSecondsAfterFinished"] = 5
    world.pods = {}
    requests.on_event("MODIFIED", {**world.item})
    worker.look(KEY)
    assert reasons(world) == ("False", "PodNotFound")
    worker.look(KEY)
    assert world.removed == []
    clock[0] += 5
    worker.look(KEY)
    assert world.removed == ["r1"]


def test_one_that_this_version_cannot_read_is_left_alone(world, worker, requests):
    changed = item(mode="Levitate")
    changed["metadata"]["resourceVersion"] = "5"
    requests.on_event("MODIFIED", changed)
    assert requests.get(KEY) is None
    worker.look(KEY)
    assert world.calls == []
    # A newer version may have begun it: nothing of it is a stray here.
    assert requests.wanted() == {"r1"}
    requests.on_event("DELETED", changed)
    assert requests.wanted() == frozenset()


def test_what_users_hang_on_a_request_is_not_kept(world, worker, requests):
    worker.look(KEY)
    worker.look(KEY)
    plain, long = world.item, {"a": "x" * 10_000}
    for name in ("annotations", "labels", "managedFields"):
        world.item = {**plain, "metadata": {**plain["metadata"], name: long}}
        assert len(str(slim_request(world.item))) < 2000
        told = Requests(CHECKPOINT, lambda _key: None)
        told.on_event("ADDED", slim_request(world.item))
        assert told.get(KEY) == requests.get(KEY)
    plain["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:05Z"
    requests.on_event("MODIFIED", slim_request(plain))
    assert requests.get(KEY) is None


def test_the_service_remembers_of_requests_no_more_than_it_needs(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(seen, "Watcher", lambda *a, **more: made.append((a, more)))
    monkeypatch.setattr(service, "ProbeServer", lambda *_: None)
    monkeypatch.setattr(service, "Api", lambda *_: SimpleNamespace(of_metadata=lambda: None))
    # Gauges outlive the test, and would ask this service, which has no watches.
    gauge = SimpleNamespace(set_function=lambda _: None)
    gauge.labels = lambda _: gauge
    names = ("LEADING", "QUEUED", "OPEN", "TEMPLATES", "PLACEMENTS", "COPIES", "ARTIFACTS")
    names += ("MISSING",)
    monkeypatch.setattr(service, "metrics", SimpleNamespace(**dict.fromkeys(names, gauge)))
    for name in ("ca.crt", "controller.crt", "controller.key"):
        (tmp_path / name).touch()
    service.Service(ControllerSettings(tls_dir=tmp_path, probe_listen="127.0.0.1:0"))
    kinds = [more for (*_, name), more in made if name.endswith("Requests")]
    assert len(kinds) == 3
    for of_requests in kinds:
        assert of_requests["keep"] is slim_request
        assert of_requests["names_only"]
        # Each may be 1.5 MiB long, and the controller has 512 MiB.
        assert of_requests["page"] <= 20
    assert all(more.get("keep") or more.get("names_only") for _, more in made)


def test_of_those_that_had_ended_nothing_is_remembered(world, requests, worker):
    """A replica that doesn't lead hears of each that goes, and looks at none."""
    world.pods = {}
    worker.look(KEY)
    assert reasons(world) == ("False", "PodNotFound")
    requests.on_event("DELETED", world.item)
    assert requests.gone(KEY) == []


def test_what_it_writes_itself_does_not_make_it_due(world, requests):
    due = []
    told = Requests(CHECKPOINT, due.append)
    told.on_event("ADDED", world.item)
    seen = told.get(KEY)
    written = world.write(seen, replace(seen.request.status, message="x"), 0.0)
    told.wrote(seen, written)
    told.on_event("MODIFIED", written)
    assert due == [KEY]


@pytest.mark.parametrize("mode", ["Evict", "Park"])
def test_what_a_budget_keeps_is_parked_only_by_who_asks_for_that(world, clock, queue, mode):
    world.item = item(mode=mode)
    requests = Requests(CHECKPOINT, lambda _key: None)
    requests.on_event("ADDED", world.item)
    worker = worker_of(queue, requests, *[world] * 5, lambda: clock[0], **LIMITS)
    world.budget = "it would violate the pod's disruption budget"
    for _ in range(3):
        worker.look(KEY)
    if mode == "Park":
        assert reasons(world) == ("False", "Running")
        return
    assert reasons(world) == ("False", "DisruptionBudget")
    assert world.calls == []
    world.budget = ""
    worker.look(KEY)
    assert reasons(world) == ("False", "Running")
    assert world.calls == [("begin", NAME)]


@pytest.mark.parametrize(("uid", "reason"), [("u1", "Queued"), ("u9", "Running")])
def test_a_policys_limit_keeps_an_eviction_of_its_pods_in_the_queue(
    world, clock, queue, uid, reason
):
    few = Policy("p1", "shop", "few", limits=PutAway(parallel=1))
    world.item = item(mode="Evict")
    requests = Requests(CHECKPOINT, lambda _key: None)
    begun = item(mode="Evict")
    begun["metadata"] |= {"name": "first", "uid": "r0"}
    begun["status"] = {"podUID": "u9", "node": "n2", "operation": "ckpt-r0"} | {
        "startTime": "2026-01-01T00:00:00Z"
    }
    for one in (begun, world.item):
        requests.on_event("ADDED", one)
    governed = {"u9": few, uid: few}
    limits = LIMITS | {"governing": lambda one: governed.get(one.status.pod_uid)}
    worker = worker_of(queue, requests, *[world] * 5, lambda: clock[0], **limits)
    for _ in range(3):
        worker.look(KEY)
    assert reasons(world) == ("False", reason)
    (condition,) = world.item["status"]["conditions"]
    assert ("CheckpointPolicy few" in condition["message"]) is (reason == "Queued")


@pytest.mark.parametrize(
    "slow",
    [
        (PutAway(idle=20.0), 19, 5, ""),
        (PutAway(idle=20.0), 21, 5, "no byte came for 20 s, 5 of 1073741824 are there"),
        (PutAway(per_gib=30.0), 149, 1 << 30, ""),
        (PutAway(per_gib=30.0), 151, 1 << 30, "its 1073741824 bytes took 150 s"),
        (PutAway(parallel=1), 200, 5, ""),
    ],
)
@pytest.mark.parametrize("mode", ["Evict", "Snapshot"])
def test_what_is_slower_than_its_policy_lets_it_is_cancelled(world, clock, queue, mode, slow):
    limits, seconds, done, why = slow
    policy = Policy("p1", "shop", "quick", limits=limits)
    world.item = item(mode=mode, requestedBy=keys.CONTROLLER_USER)
    owner = {"apiVersion": keys.API_VERSION, "kind": keys.CHECKPOINT_POLICY_KIND}
    owned = [{**owner, "name": "quick", "uid": "p1", "controller": True}]
    world.item["metadata"]["ownerReferences"] = owned if mode == "Snapshot" else []
    requests = Requests(CHECKPOINT, lambda _key: None)
    requests.on_event("ADDED", world.item)
    told = LIMITS | {"governing": lambda _: policy}
    worker = worker_of(queue, requests, *[world] * 5, lambda: clock[0], **told)

    def look(bytes_done):
        copied = Copied(bytes_done, 1 << 30)
        world.operations[NAME] = Operation(Progress.RUNNING, "it is copied", copied=copied)
        worker.look(KEY)
        requests.on_event("MODIFIED", world.item)

    worker.look(KEY)
    requests.on_event("MODIFIED", world.item)
    look(5)
    if done > 5:
        clock[0] += seconds
        look(done)
    else:
        look(5)
        clock[0] += seconds
        look(5)
    if mode == "Evict" and limits.parallel:
        why = "no byte came for 150 s, 5 of 1073741824 are there"
    if not why:
        assert reasons(world) == ("False", "Running")
        assert ("cancel", NAME) not in world.calls
        return
    assert reasons(world) == ("False", "Stalled")
    assert world.item["status"]["conditions"][0]["message"] == why
    assert ("cancel", NAME) in world.calls


def test_why_nobody_can_ask_whether_a_pod_may_go_is_told(world, clock, queue):
    world.item = item(mode="Evict", deadlineSeconds=60)
    requests = Requests(CHECKPOINT, lambda _key: None)
    requests.on_event("ADDED", world.item)
    worker = worker_of(queue, requests, *[world] * 5, lambda: clock[0], **LIMITS)
    world.budget = RefusedError("webhook x does not support dry run")
    why = "whether its pod may go can't be asked: webhook x does not support dry run"
    for _ in range(2):
        worker.look(KEY)
    assert world.item["status"]["conditions"][0]["message"] == why
    clock[0] += 61
    worker.look(KEY)
    assert reasons(world) == ("False", "DeadlineExceeded")
    told = world.item["status"]["conditions"][0]["message"]
    assert told == f"not within 60 s: it was not begun: {why}"
    assert world.calls == []


def test_what_a_budget_never_lets_go_ends_with_that_reason(world, clock, queue):
    world.item = item(mode="Evict", deadlineSeconds=60)
    requests = Requests(CHECKPOINT, lambda _key: None)
    requests.on_event("ADDED", world.item)
    worker = worker_of(queue, requests, *[world] * 5, lambda: clock[0], **LIMITS)
    world.budget = "it would violate the pod's disruption budget"
    for _ in range(2):
        worker.look(KEY)
    clock[0] += 61
    worker.look(KEY)
    assert reasons(world) == ("False", "NotLetGo")
    assert world.item["status"]["conditions"][0]["message"] == world.budget
    assert world.calls == []


@pytest.mark.parametrize("mode", ["Snapshot", "Evict"])
def test_so_many_of_a_namespace_or_node_are_under_way_and_no_more(world, clock, mode):
    requests = Requests(CHECKPOINT, lambda _key: None)
    names, written = [f"r{number}" for number in range(4)], {}

    def write(seen, status, now):
        name = seen.request.name
        told = dump_status(status, seen.status, seen.generation, now)
        written[name] = {**written[name], "status": told}
        return written[name]

    world.write = write
    for name in names:
        one = item(mode=mode)
        one["metadata"] |= {"name": name, "uid": name}
        written[name] = one
        requests.on_event("ADDED", one)
    worker = worker_of(Queue(), requests, *[world] * 5, lambda: clock[0], **LIMITS)

    def look():
        for name in reversed(names):
            for _ in range(2):
                worker.look(("shop", name))
        every = (requests.get(("shop", name)).request.status.reason for name in names)
        return [one.value for one in every]

    assert look() == ["Queued", "Queued", "Running", "Running"]
    world.operations["ckpt-r3"] = Operation(Progress.FAILED, "it could not")
    assert look() == ["Running", "Queued", "Running", "Failed"]
    assert [name for what, name in world.calls] == ["ckpt-r3", "ckpt-r2", "ckpt-r0"]


@pytest.mark.parametrize("mode", ["Snapshot", "Evict"])
def test_who_is_just_begun_counts_before_its_status_tells(world, clock, mode):
    """While its agent is asked, another thread pins an older one of the same second."""
    requests = Requests(CHECKPOINT, lambda _key: None)

    def told(name):
        one = item(mode=mode)
        one["metadata"] |= {"name": name, "uid": name, "resourceVersion": f"{name}-2"}
        one["status"] = {"podUID": "u1", "node": "n1", "operation": f"ckpt-{name}"}
        requests.on_event("MODIFIED", one)
        return requests.get(("shop", name)).request

    limits = {"snapshots": 1, "limits": Limits(of_node=1), "governing": no_policy}
    carrier = CheckpointCarrier(Queue(), requests, *[world] * 5, lambda: clock[0], **limits)
    begin, meanwhile = world.begin, []

    def slowly(request, left):
        if request.name == "r2":
            return Problem(Trouble.BUSY, "another's")
        if request.name == "r1":
            meanwhile.append(carrier.decided(told("r0")).status.reason)
        return begin(request, left)

    world.begin = slowly
    assert carrier.decided(told("r2")).status.reason is Reason.SEAT_BUSY
    requests.on_event("DELETED", item() | {"metadata": item()["metadata"] | {"name": "r2"}})
    assert carrier.decided(told("r1")).status.reason is Reason.RUNNING, "it was given back"
    assert meanwhile == [Reason.QUEUED]


def test_whose_turn_comes_is_looked_at_before_all_that_is_due(world, clock):
    """With a line of thousands, who ends would else be looked at after all of them, and nobody
    begins meanwhile."""
    known = seen.Seen(2)
    queue, names = known.due["checkpoint"], [f"r{number}" for number in range(9)]
    written = {}

    def write(told, status, now):
        name = told.request.name
        version = str(int(written[name]["metadata"]["resourceVersion"]) + 1)
        meta = written[name]["metadata"] | {"resourceVersion": version}
        said = dump_status(status, told.status, told.generation, now)
        written[name] = {**written[name], "metadata": meta, "status": said}
        return written[name]

    world.write = write
    worker = worker_of(queue, known.checkpoints, *[world] * 5, lambda: clock[0], **LIMITS)

    def work(most):
        """The names of so many looks, while any is due."""
        looked = []
        while len(queue) and len(looked) < most:
            looked.append(key := queue.get())
            worker.look(key)
            queue.done(key)
        return [name for _, name in looked]

    def reasons_now():
        every = (known.checkpoints.get(("shop", name)) for name in names)
        return Counter(one.request.status.reason.value for one in every)

    for name in names:
        one = item(mode="Snapshot")
        one["metadata"] |= {"name": name, "uid": name, "resourceVersion": "1"}
        written[name] = one
        known.checkpoints.on_event("ADDED", one)
    work(200)
    assert reasons_now() == {"Running": 2, "Queued": 7}
    for name in names:
        queue.add(("shop", name))
    world.operations["ckpt-r0"] = Operation(
        Progress.SUCCEEDED, "kept", Outcome("shop/a@1", "nvme", 1)
    )
    queue.add(("shop", "r0"), first=True)
    assert work(2) == ["r0", "r2"]
    assert reasons_now() == {"Sealed": 1, "Running": 2, "Queued": 6}


@pytest.mark.parametrize(
    ("kind", "touched"),
    [({}, []), ({"policy": "p1"}, ["shop"] * 2), ({"deployment": "web"}, ["shop"] * 2)],
)
def test_of_what_people_ask_for_no_policy_is_told(kind, touched):
    """There may be thousands of requests, and each change would have all policies looked at."""
    found, heard = seen.Seen(4), []
    found.policies = found.templates = SimpleNamespace(touch=heard.append)
    told = Requests(CHECKPOINT, lambda _key: None, lambda one: found._told(replace(one, **kind)))
    told.on_event("ADDED", item())
    assert heard == touched
    told.on_event("DELETED", item())
    assert heard == touched * 2


# --- pods that are lost ---------------------------------------------------------------------------


@pytest.fixture
def lost(world, requests):
    """A request for a pod that is lost, by the controller."""
    world.item = item(mode="Evict", tier="object", requestedBy=keys.CONTROLLER_USER)
    world.item["metadata"] |= {"name": "lost-u1", "uid": "r1"}
    requests.on_event("ADDED", world.item)
    return ("shop", "lost-u1")


def test_a_lost_pod_that_is_gone_already_is_pinned_by_what_was_seen_of_it(world, worker, lost):
    world.pods = {"a": PodFacts("u2", "n2", seat=True, ended=False, owner="rs")}
    world.lost["lost-u1"] = PodFacts("u1", "n1", seat=True, ended=False, owner="rs")
    worker.look(lost)
    status = world.item["status"]
    assert (status["podUID"], status["node"], status["owner"]) == ("u1", "n1", "rs")


def test_another_pod_of_its_name_is_not_taken_for_a_lost_one(world, worker, lost):
    world.pods = {"a": PodFacts("u2", "n2", seat=True, ended=False, owner="rs")}
    worker.look(lost)
    assert reasons(world) == ("False", "PodNotFound")


def test_without_an_agent_the_newest_artifact_is_what_was_evicted(world, worker, lost):
    worker.look(lost)
    world.away = True
    worker.look(lost)
    assert reasons(world) == ("False", "AgentUnreachable")
    world.left = RetryableError("the registry is away")
    for ended in (False, True):
        world.pods["a"] = PodFacts("u1", "n1", seat=True, ended=ended)
        worker.look(lost)
        assert reasons(world) == ("False", "Pending"), "it is asked again"
    world.pods["a"] = None
    worker.look(lost)
    assert reasons(world) == ("False", "Pending"), "its object is gone, its artifacts are not"
    world.left = Remnant("node n1 is gone", Outcome("shop/a@1", "object", 7))
    worker.look(lost)
    assert reasons(world) == ("True", "Evicted")
    assert world.item["status"]["artifact"] == {"name": "shop/a@1", "tier": "object", "bytes": 7}
    assert world.looked[-1] == ("u1", world.pods["a"])
    assert world.calls == []


def test_what_its_agent_does_counts_before_any_artifact(world, worker, lost):
    worker.look(lost)
    world.operations[NAME] = Operation(Progress.RUNNING, "its state is written")
    world.left = Remnant("the pod has ended", Outcome("shop/a@1", "object", 7))
    worker.look(lost)
    assert reasons(world) == ("False", "Running")


def test_of_other_modes_nobody_asks_what_is_left(world, worker):
    world.left = Remnant("node n1 is gone", Outcome("shop/a@1", "object", 7))
    world.away = True
    worker.look(KEY)
    worker.look(KEY)
    assert reasons(world) == ("False", "AgentUnreachable")
