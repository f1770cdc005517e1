"""What `doctor` says of a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.core.doctor.cluster import ClusterFacts, NodeFacts, Published, examine_cluster
from kybernate.core.doctor.doctor import Level, sound
from kybernate.core.doctor.nodefacts import Unseen

NODE = NodeFacts(ours=True, gpus=frozenset({"GPU-a"}), problem="", version="1", vendor=0)
SOUND = ClusterFacts((), {"deploy/kyb-webhook": True}, True, {"n1": NODE}, ())


def published(*uuids: str | None, node: str = "n1") -> tuple[Published, ...]:
    return (Published("gpu.nvidia.com", node, uuids),)


def test_a_sound_cluster():
    found = examine_cluster(SOUND)
    assert {one.level for one in found} == {Level.OK}
    assert all(not one.do for one in found)


@pytest.mark.parametrize(
    ("check", "facts", "wanted"),
    [
        ("objects", {"missing_kinds": ("gpunodes",)}, Level.FAIL),
        ("services", {"services": {"deploy/kyb-webhook": False}}, Level.FAIL),
        ("services", {"services": Unseen("forbidden")}, Level.WARN),
        ("webhook", {"webhook": False}, Level.FAIL),
        ("webhook", {"webhook": Unseen("forbidden")}, Level.WARN),
        ("nodes", {"nodes": {}}, Level.WARN),
        ("nodes", {"nodes": {"n1": replace(NODE, problem="it is drained")}}, Level.WARN),
        ("nodes", {"nodes": {"n1": replace(NODE, gpus=None)}}, Level.WARN),
        ("nodes", {"nodes": Unseen("forbidden")}, Level.WARN),
        ("versions", {"nodes": {"n1": NODE, "n2": replace(NODE, version="2")}}, Level.WARN),
        ("vendor-plugin", {"nodes": {"n1": replace(NODE, vendor=8)}}, Level.FAIL),
        ("vendor-plugin", {"nodes": {"n1": replace(NODE, vendor=8, ours=False)}}, Level.OK),
        ("dra", {"slices": published("GPU-a", "GPU-b")}, Level.FAIL),
        ("dra", {"slices": published("GPU-b")}, Level.OK),
        ("dra", {"slices": published("GPU-a", node="n2")}, Level.OK),
        ("dra", {"slices": published(None)}, Level.FAIL),
        ("dra", {"slices": Unseen("forbidden")}, Level.WARN),
    ],
)
def test_each_finding(check, facts, wanted):
    found = [one for one in examine_cluster(replace(SOUND, **facts)) if one.check == check]
    assert [one.level for one in found] == [wanted]
    assert bool(found[0].do) is (wanted is not Level.OK)


def test_a_node_that_is_given_to_us_and_tells_nothing_yet_may_not_be_published():
    nodes = {"n1": replace(NODE, gpus=None)}
    assert not sound(examine_cluster(replace(SOUND, nodes=nodes, slices=published("GPU-z"))))
    others = {"n1": replace(NODE, gpus=None, ours=False)}
    assert sound(examine_cluster(replace(SOUND, nodes=others, slices=published("GPU-z"))))


def test_of_many_nodes_some_are_named():
    nodes = {f"n{number}": replace(NODE, vendor=1) for number in range(5)}
    (found,) = (
        one for one in examine_cluster(replace(SOUND, nodes=nodes)) if one.check == "vendor-plugin"
    )
    assert found.seen.startswith("n0, n1, n2 and 2 more offer")
