"""`kubectl kyb models` and `policy`: what is told of seats, pods and policies."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from kybernate import keys
from kybernate.cli import main
from kybernate.cli.cluster import models, policies
from kybernate.cli.cluster.lines import SeatLine
from kybernate.cli.cluster.link import Link
from kybernate.cli.cluster.policies import policies_of
from kybernate.errors import NotFoundError, RefusedError

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def seat(pod, state, tier=None, model="qwen", namespace="shop", **more):
    return SeatLine(namespace, pod, pod, state, node="n1", model=model, tier=tier, **more)


def test_a_model_is_as_warm_as_its_warmest_seat():
    lines = [
        seat("a", "parked", "object", wakes=1, requests=2, last_wake_ms=9000.0),
        seat("b", "parked", "ram", wakes=3, requests=5, last_wake_ms=410.0),
        seat("c", "waiting"),
        seat("d", "active", model="llama", since="2026-01-01T00:00:00Z"),
        seat("e", "active", model=""),
        seat("f", "active", namespace="lab"),
    ]
    found = models.models_of(lines, "shop", NOW)
    assert [row.cells for row in found.rows] == [
        ("shop", "llama", "active", "-", "24h", "1", "1", "-", "0", "0", "n1"),
        ("shop", "qwen", "parked", "ram", "-", "3", "0", "410 ms", "7", "4", "n1"),
    ]
    assert found.rows[1].document["pods"] == ["b", "a", "c"]
    assert models.models_of(lines, None, NOW).rows[0].name == "lab/qwen"


def policy(name, labels, namespace="shop", **spec):
    selector = {"selector": {"matchLabels": labels}} if labels else {}
    meta = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}"}
    return {"metadata": meta, "spec": {**selector, "idle": {"ram": "1h"}, **spec}}


def pod(name, namespace="shop", **labels):
    limits = {keys.seat_resource(1): "1"}
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


POLICIES = [
    policy("all", {}),
    policy("first", {"app": "llm"}, precedence=10),
    policy("also", {"app": "llm"}, precedence=10),
    policy("all", {}, namespace="lab"),
]
PODS = [pod("a", app="llm"), pod("b"), pod("c", namespace="lab", app="llm")]


def rows(*found):
    return [row.cells[:5] for row in policies_of(*found).rows]


def test_policies_stand_in_the_order_in_which_they_count():
    assert rows(POLICIES, PODS, None) == [
        ("lab", "all", "0", "1", "1"),
        ("shop", "also", "10", "1", "1"),
        ("shop", "first", "10", "1", "0"),
        ("shop", "all", "0", "2", "1"),
    ]


def test_of_a_pod_those_are_told_that_select_it():
    here = [one for one in POLICIES if one["metadata"]["namespace"] == "shop"]
    assert rows(here, PODS, "b") == [("shop", "all", "0", "1", "1")]
    assert rows(here, PODS, "a")[0] == ("shop", "also", "10", "1", "1")
    none = policies_of(here[1:], PODS, "b")
    assert (none.rows, none.empty) == ((), "No CheckpointPolicy selects pod b.")


class Api:
    """A namespace of policies and pods; nobody may see GPUNodes."""

    def get(self, path, *_, **__):
        here = "/namespaces/shop/"
        found = {"checkpointpolicies": POLICIES[:3], "pods": PODS[:2]}.get(path.rpartition("/")[2])
        if "gpunodes" in path:
            raise RefusedError("you may not list gpunodes")
        if here not in path or (found is None and not path.endswith("/pods/a")):
            raise NotFoundError(f"nothing at {path}")
        return {"items": found}


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    for module in (models, policies):
        monkeypatch.setattr(
            module,
            "link_to",
            lambda options: Link(Api(), None if options["all_namespaces"] else "shop"),
        )


def test_for_programs():
    found = CliRunner().invoke(main, ["policy", "pod/a", "-o", "json"])
    first = json.loads(found.stdout)[0]
    assert (first["policy"], first["selects"], first["governs"]) == ("also", ["a"], 1)
    assert first["says"] == {"idle": "ram=1h"}
    names = CliRunner().invoke(main, ["policy", "-o", "name"]).stdout.split()
    assert names[0] == "checkpointpolicy.kyb.ai/also"


def test_a_pod_that_is_none_and_a_pod_of_every_namespace():
    gone = CliRunner().invoke(main, ["policy", "x"])
    assert (gone.exit_code, "nothing at" in gone.stderr) == (1, True)
    assert CliRunner().invoke(main, ["policy", "a", "-A"]).exit_code == 2


def test_who_may_not_see_nodes_is_told_of_pods_alone():
    found = CliRunner().invoke(main, ["models"])
    told = "No pod with a seat names a model in namespace shop.\n"
    assert (found.exit_code, found.stdout) == (0, told)
