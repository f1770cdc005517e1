"""What the extender learns of the pods that it has seen, and when."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from click.testing import CliRunner

from extender.state.learner import NOTICEABLE, Learner
from extender.state.snapshot import Snapshot
from kybernate import keys
from kybernate.cli import main
from kybernate.core.placement import Table
from kybernate.core.views.dump import decode
from tests.unit.extender.objects import GIB, ONE, TWO, gpu_node, pod

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.core.placement.mix import Mix

NOW = "2026-01-02T03:04:05Z"


def small_gpus(name: str) -> dict[str, Any]:
    """As `gpu_node`, but older: 24 GiB each."""
    item = gpu_node(name)
    for gpu in item["status"]["gpus"]:
        gpu |= {"product": "L4", "memoryBytes": 24 * GIB}
    return item


def wanting(name: str, vram: str, **changes: Any) -> dict[str, Any]:
    return pod(name, notes={keys.VRAM: vram}, **changes)


@pytest.fixture
def snapshot() -> Snapshot:
    """Old GPUs and new ones, and nobody on them."""
    made = Snapshot(lambda: 0.0, table=Table("default"))
    for name in ("n1", "n2"):
        made.node_event("ADDED", gpu_node(name))
    for name in ("o1", "o2"):
        made.node_event("ADDED", small_gpus(name))
    return made


def learner(snapshot: Snapshot) -> Learner:
    return Learner(snapshot, rest=lambda _seconds: None)


def mix_of(snapshot: Snapshot) -> Mix:
    return decode(orjson.loads(orjson.dumps(snapshot.dump(NOW)))).mix


def best_node(snapshot: Snapshot, item: dict[str, Any]) -> str:
    snapshot.pod_event("ADDED", item)
    found = snapshot.pod(item["metadata"]["uid"])
    assert found is not None
    assert found.demand is not None
    names = snapshot.offer(found.ref, found.demand, snapshot.names()).passed
    points = snapshot.points(found.ref.uid, found.demand, names)
    return names[points.index(max(points))]


def test_what_was_learned_decides_where_pods_go(snapshot: Snapshot) -> None:
    """Before, all that is known of nodes is that they are empty; then that some GPUs are scarce."""
    assert best_node(snapshot, wanting("first", "8Gi")) == "n1"
    for number in range(10):
        snapshot.pod_event("ADDED", wanting(f"large-{number}", "60Gi"))
    assert learner(snapshot).look()
    assert best_node(snapshot, wanting("second", "8Gi")) == "o1"
    assert best_node(snapshot, wanting("third", "60Gi")) == "n1"


def test_pods_count_that_wait_run_or_ended_lately(snapshot: Snapshot) -> None:
    notes = {keys.VRAM: "8Gi", keys.ASSIGNED_GROUP: "G0"}
    for number in range(3):
        snapshot.pod_event("ADDED", pod(f"bound-{number}", node="n1", notes=notes))
    snapshot.pod_event("ADDED", pod("waits", limits={TWO: "1"}))
    snapshot.pod_event("MODIFIED", pod("bound-0", node="n1", notes=notes, phase="Succeeded"))
    snapshot.pod_event("DELETED", pod("bound-0", node="n1", notes=notes, phase="Succeeded"))
    snapshot.pod_event("DELETED", pod("bound-1", node="n1", notes=notes))
    snapshot.pod_event("DELETED", wanting("never-seen", "1Gi"))
    learner(snapshot).look()
    wanted = [(one.resource, one.vram, one.pods) for one in mix_of(snapshot).wanted]
    assert wanted == [(ONE, 8 * GIB, 3), (TWO, -1, 1)]


def test_the_same_ledger_gives_the_same_outlook() -> None:
    pods = [wanting(f"p{n}", ("8Gi", "20Gi", "60Gi")[n % 3]) for n in range(12)]
    nodes = [gpu_node("n1"), small_gpus("o1"), gpu_node("n2")]
    found = []
    for turned in (1, -1):
        made = Snapshot(lambda: 0.0)
        for item in pods[::turned]:
            made.pod_event("ADDED", item)
        for item in nodes[::turned]:
            made.node_event("ADDED", item)
        learner(made).look()
        found.append(mix_of(made))
    assert found[0] == found[1]
    assert sum(one.nodes for one in found[0].offered) == 3


def test_it_is_learned_anew_only_when_the_mix_has_changed_noticeably(snapshot: Snapshot) -> None:
    one = learner(snapshot)
    for number in range(100):
        snapshot.pod_event("ADDED", wanting(f"p{number}", "8Gi"))
    assert one.look()
    known = mix_of(snapshot)
    assert not one.look()
    for number in range(int(100 * NOTICEABLE)):
        snapshot.pod_event("ADDED", wanting(f"q{number}", "60Gi"))
    assert not one.look()
    assert mix_of(snapshot) == known
    for number in range(10):
        snapshot.pod_event("ADDED", wanting(f"r{number}", "60Gi"))
    assert one.look()
    assert mix_of(snapshot) != known


def test_a_replay_expects_what_the_extender_did(snapshot: Snapshot, tmp_path: Path) -> None:
    for number in range(10):
        snapshot.pod_event("ADDED", wanting(f"large-{number}", "60Gi"))
    learner(snapshot).look()
    for number in range(10):
        snapshot.pod_event("DELETED", wanting(f"large-{number}", "60Gi"))
    best = best_node(snapshot, wanting("small", "8Gi"))
    file = tmp_path / "dump.json"
    file.write_bytes(orjson.dumps(snapshot.dump(NOW)))
    (told,) = json.loads(CliRunner().invoke(main, ["replay", str(file), "--json"]).output)["pods"]
    assert (told["node"], best) == ("o1", "o1")
    dump = json.loads(file.read_bytes())
    file.write_bytes(orjson.dumps({**dump, "mix": {}}))
    (told,) = json.loads(CliRunner().invoke(main, ["replay", str(file), "--json"]).output)["pods"]
    assert told["node"] == "n1"


def test_it_looks_as_soon_as_the_ledger_is_known_and_stops_when_told(snapshot: Snapshot) -> None:
    stopping = threading.Event()
    asked = []

    def closed() -> str | None:
        asked.append(1)
        stopping.set()
        return None

    snapshot.pod_event("ADDED", wanting("p", "8Gi"))
    learner(snapshot).run(closed, stopping)
    assert asked == [1]
    assert mix_of(snapshot).wanted


def test_nothing_is_learned_of_half_a_ledger(snapshot: Snapshot) -> None:
    stopping = threading.Event()

    def closed() -> str | None:
        stopping.set()
        return "the first list is under way"

    learner(snapshot).run(closed, stopping)
    assert mix_of(snapshot).offered == ()
