"""`kubectl drain` takes a Deployment's pod from its node, and its state comes along; so it does
when the Deployment is scaled to zero, and back on a request; and so does what was saved last of one
whose node fails.

docs/how-to/operate/drain-a-node.md, docs/how-to/operate/when-a-node-fails.md,
docs/how-to/workloads/scale-to-zero.md
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kybernate import keys
from kybernate.errors import KybernateError, NotFoundError, RetryableError
from tests.cluster.processes.control import wait_until
from tests.e2e.tiers.test_restores import Site, seats, site
from tests.faults.scenes import reboot
from tests.kit.clients.direct import Direct
from tests.kit.clients.kubectl import Kubectl
from tests.kit.clients.models import Models
from tests.kit.howto import Page
from tests.kit.pods import PODS, SeatPod, ready
from tests.simgpu import Faults

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tests.kit.pods import Pods

    Json = dict[str, Any]

__all__ = ["seats", "site"]
"""Fixtures, the same as of restores: two nodes, an object store, a registry."""

pytestmark = pytest.mark.e2e

APPS = "/apis/apps/v1/namespaces/default"
REQUESTS = f"/apis/{keys.API_VERSION}/namespaces/default/checkpointrequests"
LABELS = {"app": "drained"}
WORDS = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")


@pytest.fixture
def reader(site: Site, tmp_path: Path) -> Kubectl:
    """kubectl of somebody who follows a page."""
    return Kubectl(site.cluster.kubectl_path, tmp_path, site.cluster.kubeconfig)


@pytest.fixture
def deployment(site: Site, seats: Pods) -> Iterator[str]:
    """One pod with a seat that Kubernetes replaces; all nodes may be used again afterwards."""
    made = SeatPod("toy", bytes_="1GiB").manifest()
    meta = {**made["metadata"], "labels": {**made["metadata"]["labels"], **LABELS}}
    del meta["name"]
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": meta, "spec": made["spec"]},
    }
    api = site.cluster.api()
    api.post(f"{APPS}/deployments", {"metadata": {"name": "drained"}, "spec": spec})
    yield "drained"
    for node in ("n1", "n2"):
        site.cluster.kubectl("uncordon", node)
    api.delete(f"{APPS}/deployments/drained", {"propagationPolicy": "Background"})
    wait_until(lambda: not seats.all(), 60, "its pods stay")
    for item in api.get(REQUESTS)["items"]:
        api.delete(f"{REQUESTS}/{item['metadata']['name']}")


def the_pod(seats: Pods, *, but: str = "") -> Json:
    """The Deployment's only pod, once it serves; not the one of the UID `but`."""
    (found,) = serving(seats, 1, but={but}).values()
    return found


def counts(pod: Json, times: int) -> int:
    """What the last of so many answers counts."""
    return max(Direct.to(pod).ask().counter for _ in range(times))


def serving(seats: Pods, number: int, *, but: Collection[str] = ()) -> dict[str, Json]:
    """So many pods that serve, by their UIDs, once none else is there but those of `but`, and those
    that have failed."""
    found: dict[str, Json] = {}

    def there() -> bool:
        found.clear()
        every = [one for one in seats.all().values() if not over(one)]
        found.update({p["metadata"]["uid"]: p for p in every if p["metadata"]["uid"] not in but})
        return len(found) == number and all(ready(one) for one in found.values())

    wait_until(there, 150, f"no {number} pods serve")
    return dict(found)


def test_a_drained_pod_continues_on_another_node_though_the_controller_is_killed(
    site: Site, seats: Pods, deployment: str, reader: Kubectl
) -> None:
    first = the_pod(seats)
    uid, node = first["metadata"]["uid"], first["spec"]["nodeName"]
    assert Direct.to(first).ask().counter == 1
    last = Direct.to(first).ask()
    wait_until(lambda: site.seat(node, first["metadata"]["name"]) != {}, 20, "not told of")
    would = site.cluster.kubectl("drain", node, *WORDS, "--dry-run=server")
    assert "(server dry run)" in would
    assert site.cluster.api().get(REQUESTS)["items"] == []

    site.cluster.kubectl("uncordon", node)
    name = f"evict-{uid}-1"
    with Page("drain-a-node", reader, node=node) as page:
        with page.start("kubectl drain") as drain:
            wait_until(lambda: begun(site, name), 30, "nothing is asked for")
            assert name in page("kubectl get ckpt")
            site.cluster.process("controller").kill9()
            said, wrong = drain.communicate(timeout=160)
        assert drain.returncode == 0, (said, wrong)
        assert "object store" in said + wrong
        second = the_pod(seats, but=uid)
        page("kubectl uncordon")
    assert second["spec"]["nodeName"] != node
    assert second["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{uid}"
    answer = Direct.to(second).ask()
    told = site.sentence(second["metadata"]["name"], "RestoreRefused")
    assert (answer.counter, answer.intact) == (3, True), told
    for what in ("boot", "pid"):
        assert answer.body["kyb"][what] == last.body["kyb"][what]
    request = site.cluster.api().get(f"{REQUESTS}/{name}")
    assert request["metadata"]["annotations"] == {keys.SUCCESSOR: second["metadata"]["uid"]}
    assert request["status"]["artifact"]["tier"] == "object"
    names = [one["metadata"]["name"] for one in site.cluster.api().get(REQUESTS)["items"]]
    assert names == [name], "one was enough"


def begun(site: Site, name: str) -> bool:
    try:
        found = site.cluster.api().get(f"{REQUESTS}/{name}")
    except NotFoundError:
        return False
    return bool((found.get("status") or {}).get("operation"))


def test_what_may_not_go_into_the_store_is_let_go_without_delay(
    site: Site, seats: Pods, deployment: str
) -> None:
    first = the_pod(seats)
    note = {"metadata": {"annotations": {"kyb.ai/park-tier": "ram"}}}
    path = f"/api/v1/namespaces/default/pods/{first['metadata']['name']}"
    site.cluster.api().patch(path, note)
    node = first["spec"]["nodeName"]
    wait_until(lambda: site.seat(node, first["metadata"]["name"]) != {}, 20, "not told of")
    try:
        site.cluster.kubectl("drain", node, *WORDS, limit=160)
    except KybernateError as error:
        pytest.fail(str(error))
    second = the_pod(seats, but=first["metadata"]["uid"])
    assert keys.RESTORE_FROM not in second["metadata"]["annotations"]
    assert Direct.to(second).ask().counter == 1


def test_replicas_of_one_node_continue_each_from_its_own_state(
    site: Site, seats: Pods, deployment: str
) -> None:
    """One of them lies in the object store before anybody drains."""
    the_pod(seats)
    site.cluster.kubectl("cordon", "n2")
    first = the_pod(seats)
    if first["spec"]["nodeName"] != "n1":
        seats.delete([first["metadata"]["name"]])
    site.cluster.api().patch(f"{APPS}/deployments/{deployment}", {"spec": {"replicas": 2}})
    before = serving(seats, 2)
    asked = {uid: counts(one, times) for times, (uid, one) in enumerate(before.items(), 2)}
    site.cluster.kubectl("uncordon", "n2")
    for one in before.values():
        wait_until(lambda one=one: site.seat("n1", one["metadata"]["name"]) != {}, 20, "not told")
    site.park("n1", next(iter(before.values()))["metadata"]["name"])
    site.cluster.kubectl("drain", "n1", *WORDS, limit=170)

    after = serving(seats, 2, but=set(before))
    sources = {
        one["metadata"]["annotations"].get(keys.RESTORE_FROM, "").removeprefix("pod/"): one
        for one in after.values()
    }
    assert set(sources) == set(before), "each state has one successor"
    for uid, one in sources.items():
        assert counts(one, 1) == asked[uid] + 1


@pytest.fixture
def stateful(site: Site, seats: Pods) -> Iterator[str]:
    """A StatefulSet of two pods with seats; all nodes may be used again afterwards."""
    made = SeatPod("toy", bytes_="1GiB").manifest()
    meta = {**made["metadata"], "labels": {**made["metadata"]["labels"], **LABELS}}
    del meta["name"]
    spec = {
        "replicas": 2,
        "serviceName": "stateful",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": meta, "spec": made["spec"]},
    }
    api = site.cluster.api()
    api.post(f"{APPS}/statefulsets", {"metadata": {"name": "stateful"}, "spec": spec})
    yield "stateful"
    for node in ("n1", "n2"):
        site.cluster.kubectl("uncordon", node)
    api.delete(f"{APPS}/statefulsets/stateful", {"propagationPolicy": "Background"})
    wait_until(lambda: not seats.all(), 60, "its pods stay")
    for item in api.get(REQUESTS)["items"]:
        api.delete(f"{REQUESTS}/{item['metadata']['name']}")


def test_pods_of_a_statefulset_continue_each_under_its_own_name(
    site: Site, seats: Pods, stateful: str
) -> None:
    """The pod that is made in the place of one has its name: by the UID it is told apart."""
    before = {one["metadata"]["name"]: one for one in serving(seats, 2).values()}
    assert set(before) == {f"{stateful}-0", f"{stateful}-1"}
    asked = {name: counts(one, times) for times, (name, one) in enumerate(before.items(), 2)}
    for name, one in before.items():
        node = one["spec"]["nodeName"]
        wait_until(lambda node=node, name=name: site.seat(node, name) != {}, 20, "not told of")
    node = before[f"{stateful}-0"]["spec"]["nodeName"]
    leaving = [name for name, one in before.items() if one["spec"]["nodeName"] == node]
    site.cluster.kubectl("drain", node, *WORDS, limit=170)

    uids = [before[name]["metadata"]["uid"] for name in leaving]
    stay = {one["metadata"]["uid"] for one in before.values()} - set(uids)
    found = serving(seats, 2, but=uids)
    after = {one["metadata"]["name"]: one for one in found.values()}
    assert set(after) == set(before)
    assert stay <= set(found), "who was on the other node stays"
    for name in leaving:
        one, old = after[name], before[name]["metadata"]["uid"]
        assert one["spec"]["nodeName"] != node
        assert one["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{old}"
        assert site.execute(name, "import socket; print(socket.gethostname())").strip() == name
    assert {name: counts(one, 1) for name, one in after.items()} == {
        name: count + 1 for name, count in asked.items()
    }


def test_a_deployment_is_scaled_to_zero_through_every_tier_and_wakes_on_a_request(
    site: Site, seats: Pods, deployment: str, reader: Kubectl
) -> None:
    """As docs/how-to/workloads/scale-to-zero.md has it, with idle times of a second."""
    kubectl, models = site.cluster.kubectl, Models(site.cluster.proxy_url)
    page = Page("scale-to-zero", reader, deployment=deployment)
    unlabelled = the_pod(seats)["metadata"]["uid"]
    page("kubectl -n shop patch")
    uid = the_pod(seats, but=unlabelled)["metadata"]["uid"]
    # The one before serves until it is deleted, and would count what is asked.
    wait_until(lambda: len(seats.all()) == 1, 60, "the one without the label stays")
    last = [models.ask("toy") for _ in range(3)][-1]
    assert last.counter == 3
    page.changed(
        "checkpointpolicy-zero", idle=dict.fromkeys(("vram", "ram", "nvme", "object"), "1s")
    )
    try:
        with page:
            page("kubectl -n shop apply")
            wait_until(lambda: "Governs" in page("kubectl -n shop get cpol"), 30, "it governs none")
            wait_until(lambda: not seats.all(), 120, "it is not scaled to zero")
            assert " 0/0 " in page("kubectl -n shop get deployment")
            assert f"zero-{uid}" in page("kubectl -n shop get ckpt")
            assert "default/toy" in models.names() or "toy" in models.names()
            site.cluster.process("controller").kill9()
            answer = models.ask("toy", limit=120)
            assert (answer.status, answer.counter, answer.intact) == (200, 4, True), answer.body
            assert answer.body["kyb"]["boot"] == last.body["kyb"]["boot"]
            (second,) = seats.all().values()
            assert second["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{uid}"
            wait_until(lambda: not seats.all(), 120, "it is not scaled to zero again")
            kubectl("delete", "cpol", "--all")
            page("kubectl -n shop scale")
            wait_until(lambda: bool(seats.all()), 30, "it is not scaled up by hand")
            assert models.ask("toy", limit=120).counter == 5
    finally:
        models.close()
        kubectl("delete", "cpol", "--all")


def standing_of(site: Site, path: str) -> str:
    """The reason in a request's one condition."""
    (condition,) = site.cluster.api().get(path)["status"]["conditions"]
    return str(condition["reason"])


TAINT = "node.kubernetes.io/out-of-service"


@pytest.fixture
def failing(site: Site) -> Iterator[Callable[[str, str], None]]:
    """Has a node fail hard: its agent and its kubelet, and what ran of a pod. Afterwards it is back
    and in service."""
    failed: list[str] = []

    def fail(node: str, uid: str) -> None:
        failed.append(node)
        site.cluster.node(node).agent.stop()
        site.cluster.node(node).kubelet.stop()
        for found in Path("/proc").glob("[0-9]*/cgroup"):
            with suppress(OSError):
                if uid in found.read_text():
                    os.kill(int(found.parent.name), signal.SIGKILL)

    yield fail
    for node in failed:
        site.cluster.node(node).agent.start()
        site.cluster.node(node).kubelet.start()
        with suppress(KybernateError):
            site.cluster.kubectl("taint", "node", node, f"{TAINT}-")


def test_a_pod_whose_node_fails_continues_elsewhere_from_its_newest_snapshot(
    site: Site,
    seats: Pods,
    deployment: str,
    failing: Callable[[str, str], None],
    reader: Kubectl,
) -> None:
    """As docs/how-to/operate/when-a-node-fails.md has it; the controller is killed meanwhile."""
    first = the_pod(seats)
    uid, name, node = (
        *(first["metadata"][key] for key in ("uid", "name")),
        first["spec"]["nodeName"],
    )
    last = Direct.to(first).ask()
    page = Page("when-a-node-fails", reader, pod=name, node=node)
    saved = page("kubectl kyb snapshot")
    # The projection of the registry is renewed now and then.
    wait_until(lambda: name in page("kubectl kyb artifacts ls"), 30, "no Artifact")
    assert Direct.to(first).ask().counter == 2, "what is done since the snapshot is lost"
    failing(node, uid)
    page(f"kubectl taint node gpu-7 {TAINT}=")
    site.cluster.process("controller").kill9()

    second = the_pod(seats, but=uid)
    assert second["spec"]["nodeName"] != node
    answer = Direct.to(second).ask()
    told = site.sentence(second["metadata"]["name"], "RestoreRefused")
    assert (answer.counter, answer.intact) == (2, True), told
    assert answer.body["kyb"]["boot"] == last.body["kyb"]["boot"]
    path = f"{REQUESTS}/lost-{uid}"
    # The controller that was killed may have made the pod go before it could tell so.
    wait_until(lambda: standing_of(site, path) == "Evicted", 30, "it is not told as done")
    request = site.cluster.api().get(path)
    assert request["metadata"]["annotations"] == {keys.SUCCESSOR: second["metadata"]["uid"]}
    assert request["status"]["artifact"]["name"] in saved
    assert f"lost-{uid}" in page("kubectl get ckpt")
    told_of = f"pod/{second['metadata']['name']}"
    wait_until(lambda: told_of in page("kubectl get events"), 30, "no event tells of it")
    known = site.registry.pod("default", uid)
    assert (known.stopped, known.successor) == ("out-of-service", second["metadata"]["uid"])

    site.cluster.node(node).agent.start()
    site.cluster.node(node).kubelet.start()
    with page:
        page(f"kubectl taint node gpu-7 {TAINT}-")
    seats.gone([name], 120)
    wait_until(lambda: site.seat(node, name) == {}, 60, "it is still told of")
    assert Direct.to(second).ask().counter == 3, "there is one of it"


def test_a_pod_that_its_kubelet_failed_after_a_reboot_is_replaced_and_continues(
    site: Site, seats: Pods, deployment: str, reader: Kubectl
) -> None:
    """The kubelet admits its pods before the device plugin is there, and fails them for good."""
    first = the_pod(seats)
    uid, name, node = (
        *(first["metadata"][key] for key in ("uid", "name")),
        first["spec"]["nodeName"],
    )
    last = Direct.to(first).ask()
    done = reader("kyb", "snapshot", name)
    assert not done.returncode, (done.stdout, done.stderr)
    assert Direct.to(first).ask().counter == 2, "what is done since the snapshot is lost"
    rebooted(site, node)

    second = the_pod(seats, but=uid)
    failed = seats.get(name)["status"]
    assert (failed["phase"], failed["reason"]) == ("Failed", "UnexpectedAdmissionError")
    marks = [one for one in failed["conditions"] if one["type"] == keys.REPLACE_CONDITION]
    assert [one["status"] for one in marks] == ["True"]
    assert second["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{uid}"
    answer = Direct.to(second).ask()
    told = site.sentence(second["metadata"]["name"], "RestoreRefused")
    assert (answer.counter, answer.intact) == (2, True), told
    assert answer.body["kyb"]["boot"] == last.body["kyb"]["boot"]
    path = f"{REQUESTS}/lost-{uid}"
    wait_until(lambda: standing_of(site, path) == "Evicted", 30, "it is not told as done")


def rebooted(site: Site, node: str) -> None:
    processes = reboot.power_off(site.cluster, node)
    reboot.wipe(site.cluster, node)
    reboot.power_on(site.cluster, node, processes)


def test_a_pod_of_a_statefulset_continues_after_a_reboot_though_its_failed_pod_is_deleted_at_once(
    site: Site, seats: Pods, stateful: str, reader: Kubectl
) -> None:
    """As StatefulSets do: no agent that runs afterwards hears of its end."""
    before = {one["metadata"]["name"]: one for one in serving(seats, 2).values()}
    name = f"{stateful}-0"
    first = before[name]
    node = first["spec"]["nodeName"]
    left = [one["metadata"]["uid"] for one in before.values() if one["spec"]["nodeName"] == node]
    assert counts(first, 1) == 1
    done = reader("kyb", "snapshot", name)
    assert not done.returncode, (done.stdout, done.stderr)
    assert counts(first, 1) == 2, "what is done since the snapshot is lost"
    rebooted(site, node)
    after = {one["metadata"]["name"]: one for one in serving(seats, 2, but=left).values()}
    second = after[name]
    assert second["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{first['metadata']['uid']}"
    told = site.sentence(name, "RestoreRefused")
    assert counts(second, 1) == 2, told


def evicted(site: Site, name: str) -> bool:
    """Whether the pod may go, and does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    try:
        site.cluster.api().post(f"{PODS}/{name}/eviction", body)
    except RetryableError:
        return False
    return True


def has_ended(site: Site, name: str) -> bool:
    try:
        return standing_of(site, f"{REQUESTS}/{name}") == "Evicted"
    except (NotFoundError, KeyError):
        return False


class Sent(NamedTuple):
    """A pod that has counted to two and whose state is put away, and the pod in its place: bound to
    `node`, another one, whose kubelet knows nothing of it yet."""

    uid: str
    was_on: str
    successor: str
    node: str


@pytest.fixture
def sent(site: Site, seats: Pods, deployment: str) -> Iterator[Sent]:
    """The kubelet stands still until it gets SIGCONT."""
    first = the_pod(seats)
    uid, name = (first["metadata"][key] for key in ("uid", "name"))
    node = first["spec"]["nodeName"]
    (other,) = {"n1", "n2"} - {node}
    assert counts(first, 2) == 2
    wait_until(lambda: site.seat(node, name) != {}, 20, "not told of")
    site.cluster.kubectl("cordon", node)
    assert not evicted(site, name)
    wait_until(lambda: has_ended(site, f"evict-{uid}-1"), 60, "its state is not put away")
    kubelet = site.cluster.node(other).kubelet
    kubelet.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: evicted(site, name), 20, "it may not go")
        yield Sent(uid, node, bound(seats, other), other)
    finally:
        kubelet.signal(signal.SIGCONT)


def is_failed_and_marked(site: Site, seats: Pods, sent: Sent) -> None:
    """Once its kubelet runs again."""
    site.cluster.node(sent.node).kubelet.signal(signal.SIGCONT)
    wait_until(lambda: over(seats.get(sent.successor)), 60, "it runs without a seat")
    wait_until(lambda: marked(seats.get(sent.successor)), 30, "nobody is told that it is replaced")


def continues(site: Site, seats: Pods, sent: Sent) -> Json:
    """The pod that serves at last, which counts on from two."""
    third = the_pod(seats, but=sent.uid)
    assert third["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{sent.uid}"
    told = site.sentence(third["metadata"]["name"], "RestoreRefused")
    assert counts(third, 1) == 3, told
    return third


def test_a_successor_whose_plugin_ends_before_it_is_admitted_is_marked_and_the_next_continues(
    site: Site, seats: Pods, sent: Sent
) -> None:
    plugin = site.cluster.node(sent.node).plugin
    plugin.stop()
    try:
        is_failed_and_marked(site, seats, sent)
    finally:
        plugin.start()
    continues(site, seats, sent)


FELL_OFF_THE_BUS = 79


@contextmanager
def off_the_bus(site: Site, node: str, *lost: int) -> Iterator[None]:
    """These GPUs of the node are lost to the driver, as its agent knows; they come back."""
    faults = Faults(site.cluster.simgpu_root(node))
    try:
        for index in lost:
            faults.lose_gpu(index)
            faults.xid(index, FELL_OFF_THE_BUS)
        wait_until(lambda: ill(site, node) == {*lost}, 30, "nobody notices it")
        yield
    finally:
        for index in lost:
            faults.lose_gpu(index, lost=False)
    wait_until(lambda: not ill(site, node), 60, "they are not in use again")


def ill(site: Site, node: str) -> set[int]:
    status = site.cluster.api().get(f"{keys.GPU_NODES_PATH}/{node}")["status"]
    return {gpu["index"] for gpu in status["gpus"] if not gpu["healthy"]}


def test_a_successor_whose_gpus_fall_off_the_bus_is_marked_and_the_next_continues_on_another(
    site: Site, seats: Pods, sent: Sent
) -> None:
    with off_the_bus(site, sent.node, 0, 1):
        is_failed_and_marked(site, seats, sent)
        site.cluster.kubectl("uncordon", sent.was_on)
        third = continues(site, seats, sent)
        assert third["spec"]["nodeName"] == sent.was_on


def test_a_successor_whose_kubelet_admits_it_to_a_lost_gpu_keeps_its_state_until_that_is_back(
    site: Site, seats: Pods, sent: Sent
) -> None:
    """A kubelet gives it the ID of another GPU's seat, for it doesn't know which group it has."""
    group = seats.get(sent.successor)["metadata"]["annotations"][keys.ASSIGNED_GROUP]
    with off_the_bus(site, sent.node, int(group.removeprefix("G"))):
        site.cluster.node(sent.node).kubelet.signal(signal.SIGCONT)
        wait_until(lambda: movable(site, sent), 60, "it is not told that it can't wake")
        assert site.seat(sent.node, sent.successor)["tier"] == "object"
    continues(site, seats, sent)


def test_a_successor_that_is_evicted_before_it_continued_hands_its_state_to_the_next(
    site: Site, seats: Pods, sent: Sent
) -> None:
    """It has the claim, and waits for a GPU that is lost; the pod in its place is bound while it is
    there still."""
    group = seats.get(sent.successor)["metadata"]["annotations"][keys.ASSIGNED_GROUP]
    with off_the_bus(site, sent.node, int(group.removeprefix("G"))):
        site.cluster.node(sent.node).kubelet.signal(signal.SIGCONT)
        wait_until(lambda: movable(site, sent), 60, "it does not wait for its GPU")
        uid = seats.get(sent.successor)["metadata"]["uid"]
        site.cluster.kubectl("uncordon", sent.was_on)
        site.cluster.kubectl("cordon", sent.node)
        assert not evicted(site, sent.successor)
        wait_until(lambda: has_ended(site, f"evict-{uid}-1"), 60, "its state is not put away")
        wait_until(lambda: evicted(site, sent.successor), 20, "it may not go")
        third = continues(site, seats, sent)
        assert third["spec"]["nodeName"] == sent.was_on
    second, first = (site.cluster.api().get(f"{REQUESTS}/evict-{of}-1") for of in (uid, sent.uid))
    assert second["status"]["artifact"]["name"] == first["status"]["artifact"]["name"]
    assert first["metadata"]["annotations"] == {keys.SUCCESSOR: third["metadata"]["uid"]}


def movable(site: Site, sent: Sent) -> bool:
    return bool(site.seat(sent.node, sent.successor).get("movable"))


def bound(seats: Pods, node: str) -> str:
    """The name of the pod that is bound to the node, once there is one."""
    found: list[str] = []

    def there() -> bool:
        every = seats.all().items()
        found[:] = [name for name, one in every if one["spec"].get("nodeName") == node]
        return bool(found)

    wait_until(there, 30, "none is bound there")
    return found[0]


def over(pod: Json) -> bool:
    return bool(pod["status"]["phase"] == "Failed")


def marked(pod: Json) -> bool:
    """Whether it says that it is replaced."""
    found = pod["status"].get("conditions", ())
    return any(one["type"] == keys.REPLACE_CONDITION for one in found)
