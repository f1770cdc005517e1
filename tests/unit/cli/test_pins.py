"""`kubectl kyb pin` and `unpin`, and by whom `artifacts ls` says that an artifact is kept."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from kybernate import keys
from kybernate.api.placements.status import read_placement
from kybernate.cli import completing, main
from kybernate.cli.cluster import pins
from kybernate.cli.cluster.lines import OBJECTS, artifact_lines
from kybernate.cli.cluster.link import Link
from kybernate.errors import ConflictError, NotFoundError, RefusedError

TIERS = f"/apis/{keys.API_VERSION}/namespaces/shop/tierplacements"
OLD, NEW = (f"shop/a@2026013{day}T120000Z-00c0ffee" for day in (0, 1))


def artifact(name: str, day: int) -> dict:
    meta = {"namespace": "shop", "name": name.partition("/")[2].lower().replace("@", ".")}
    status = {"artifact": name, "tier": "object", "bytes": 3 << 30, "pod": "a", "podUID": "u"}
    return {"metadata": meta, "status": {**status, "takenAt": f"2026-01-3{day}T12:00:00Z"}}


class Api:
    """The API server, with the TierPlacements that there are."""

    def __init__(self, there=()):
        self.there = {one["metadata"]["name"]: one for one in there}
        self.calls, self.asked = [], []

    def get(self, path, params=None, **_):
        if path == TIERS:
            return {"items": list(self.there.values())}
        if not path.startswith(f"{TIERS}/"):
            self.asked.append(params["labelSelector"])
            return {"items": [artifact(OLD, 0), artifact(NEW, 1)]}
        name = path.rpartition("/")[2]
        if name not in self.there:
            raise NotFoundError(f"no {name}")
        return self.there[name]

    def post(self, path, body, params=None):
        assert path == TIERS
        if body["metadata"]["name"] in self.there:
            raise ConflictError("it exists")
        self.calls.append(("post", body, params))
        return body

    def patch(self, path, body, params=None):
        self.calls.append(("patch", body, params))
        return {**self.there[path.rpartition("/")[2]], **body}

    def delete(self, path, body=None):
        self.calls.append(("delete", path, body))


@pytest.fixture
def call(monkeypatch):
    def run(*words, there=()):
        api = Api(there)
        monkeypatch.setattr(pins, "link_to", lambda _: Link(api, "shop"))
        done = CliRunner().invoke(main, [*words])
        return SimpleNamespace(code=done.exit_code, out=done.stdout, err=done.stderr, api=api)

    return run


def made(name="pin-a", label=keys.OF_POD_LABEL, value="a"):
    return {
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {label: value}}, "copies": {"object": 1}},
    }


def test_a_pods_newest_artifact_is_pinned_and_told(call, monkeypatch):
    monkeypatch.setattr(pins.time, "time", lambda: 1_767_225_600.0)
    found = call("pin", "pod/a", "--for", "720h", "--why", "an audit")
    ((verb, body, params),) = found.api.calls
    assert (found.code, verb, params) == (0, "post", None)
    assert body["metadata"] == {"name": "pin-a", "annotations": {keys.WHY: "an audit"}}
    placement = read_placement({**body, "metadata": {**body["metadata"], "namespace": "shop"}})
    assert (placement.newest, placement.object, placement.nvme) == (1, True, None)
    assert body["spec"]["pinnedUntil"] == "2026-01-31T00:00:00Z"
    assert placement.selector[0].name == keys.OF_POD_LABEL
    assert found.api.asked == ["kyb.ai/pod=a"]
    assert found.out.splitlines() == [
        f"{NEW}  3.0 GiB",
        "the newest is kept, by tierplacement.kyb.ai/pin-a, until 2026-01-31T00:00:00Z",
    ]


def test_a_dry_run_says_what_would_be_kept_and_makes_nothing(call):
    found = call("pin", "--model", "Birch_7", "--newest", "2", "--dry-run")
    ((verb, body, params),) = found.api.calls
    assert (found.code, verb, params) == (0, "post", {"dryRun": "All"})
    assert body["metadata"]["name"] == "pin-model-birch-7"
    assert body["spec"]["selector"] == {"matchLabels": {keys.MODEL: "Birch_7"}}
    assert found.out.splitlines()[:2] == [f"{NEW}  3.0 GiB", f"{OLD}  3.0 GiB"]
    assert "would be kept" in found.out
    named = call("pin", "a", "-o", "name")
    assert named.out == "tierplacement.kyb.ai/pin-a\n"


def test_another_pin_of_the_same_changes_it_and_takes_nothing_elses_place(call):
    found = call("pin", "a", "--newest", "3", there=[made()])
    ((verb, body, _),) = found.api.calls
    assert (verb, body["spec"]["newest"], body["spec"]["pinnedUntil"]) == ("patch", 3, None)
    other = call("pin", "a", there=[made(value="b")])
    assert (other.code, other.api.calls) == (1, [])
    assert "keeps other artifacts" in other.err


def test_one_artifact_is_pinned_by_its_name(call):
    found = call("pin", "--artifact", OLD)
    ((verb, body, _),) = found.api.calls
    name = "pin-artifact-20260130t120000z-00c0ffee"
    assert (found.code, verb, body["metadata"]["name"]) == (0, "post", name)
    moment = {keys.MOMENT_LABEL: "20260130T120000Z-00c0ffee"}
    assert body["spec"]["selector"] == {"matchLabels": moment}
    gone = call("unpin", "--artifact", OLD, there=[made(name, *moment.popitem())])
    assert gone.api.calls == [("delete", f"{TIERS}/{name}", None)]


def test_what_was_pinned_is_let_go(call):
    found = call("unpin", "a", there=[made()])
    assert (found.code, found.api.calls) == (0, [("delete", f"{TIERS}/pin-a", None)])
    tried = call("unpin", "tpl/birch", "--dry-run", there=[made("birch")])
    assert tried.api.calls == [("delete", f"{TIERS}/birch", {"dryRun": ["All"]})]
    assert "nothing was" in tried.out
    none = call("unpin", "a")
    assert (none.code, none.api.calls) == (1, [])


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (("unpin", "model-birch"), made("pin-model-birch", keys.MODEL, "birch")),
        (("unpin", "--model", "birch_7"), made("pin-model-birch-7", keys.MODEL, "birch-7")),
        (("unpin", "a", "--dry-run"), made(value="b")),
    ],
)
def test_a_pin_of_something_else_whose_name_is_alike_is_not_let_go(call, words, there):
    found = call(*words, there=[there])
    assert (found.code, found.api.calls) == (1, [])
    assert f"write unpin tpl/{there['metadata']['name']}" in found.err
    named = call("unpin", f"tpl/{there['metadata']['name']}", there=[there])
    assert named.api.calls == [("delete", f"{TIERS}/{there['metadata']['name']}", None)]


@pytest.mark.parametrize(
    "words",
    [
        ("pin",),
        ("pin", "a", "--model", "b"),
        ("pin", "a", "--artifact", OLD),
        ("pin", "--artifact", "shop/a"),
        ("pin", "--model", "x/y"),
        ("unpin",),
    ],
)
def test_what_can_not_be_pinned_is_refused_before_anything_is_asked(call, words):
    found = call(*words)
    assert (found.code, found.api.calls) == (2, [])


def test_what_unpin_takes_is_completed(monkeypatch):
    api = Api([made(), made("pin-model-birch"), made("oak")])
    monkeypatch.setattr("kybernate.cli.cluster.link.link_to", lambda _: Link(api, "shop"))
    ctx = SimpleNamespace(params={})
    words = [one.value for one in completing.pin_names(ctx, click.Argument(["pod"]), "")]
    assert words == ["a", "tpl/pin-model-birch", "tpl/oak"]
    assert [one.value for one in completing.pin_names(ctx, click.Argument(["pod"]), "tpl/o")] == [
        "tpl/oak"
    ]


def test_by_which_placements_an_artifact_is_kept():
    def keeps(name, artifacts, namespace="shop", **spec):
        meta = {"name": name, "namespace": namespace}
        return {"metadata": meta, "spec": spec, "status": {"artifacts": artifacts}}

    kept = [
        keeps("z", [NEW]),
        keeps("a", [NEW, OLD]),
        keeps("over", [NEW, OLD], pinnedUntil="2026-02-01T00:00:00Z"),
        keeps("elsewhere", [OLD], namespace="lab"),
    ]
    now = datetime(2026, 2, 2, tzinfo=UTC)
    found = artifact_lines([artifact(OLD, 0), artifact(NEW, 1)], now, kept)
    column = OBJECTS.index("KEPT BY")
    assert [row.cells[column] for row in found.rows] == ["a,z", "a"], "the newest first"
    before = artifact_lines([artifact(OLD, 0)], datetime(2026, 1, 31, tzinfo=UTC), kept)
    assert before.rows[0].cells[column] == "a,over"
    assert artifact_lines([artifact(OLD, 0)], now).rows[0].cells[column] == "-"


def test_what_is_refused_is_told(call, monkeypatch):
    def refuses(*_):
        raise RefusedError("ann may not restore: that takes the verb restore")

    monkeypatch.setattr(Api, "post", refuses)
    found = call("pin", "a")
    assert (found.code, "takes the verb restore" in found.err) == (1, True)
