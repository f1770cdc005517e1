"""`kubectl kyb approve`: what is shown before it, what it changes, and how it ends."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from kybernate.cli import main
from kybernate.cli.cluster import rebalances
from kybernate.cli.cluster.asking import Asking
from kybernate.cli.cluster.link import Link
from kybernate.cli.cluster.rebalances import REBALANCES

GIB = 1 << 30
STEP = {
    "kind": "move",
    "namespace": "shop",
    "pod": "a",
    "uid": "u",
    "from": {"node": "n1", "group": "G0"},
    "to": {"node": "n2", "group": "G1"},
    "seconds": 30.0,
    "bytes": 3 * GIB,
    "stage": "Waiting",
}
PLAN = {"hash": "abc", "moves": 1, "seconds": 30.0, "message": "1 move", "steps": [STEP]}


def waiting(reason="AwaitingApproval", **more):
    said = {"type": "Complete", "status": "False", "reason": reason, "message": "it waits"}
    meta = {"name": "move-x", "namespace": "shop", "uid": "r"}
    return {
        "metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"move": {"pod": "a", "to": {"node": "n2"}}},
        "status": {"conditions": [said], "plan": PLAN, **more},
    }


@pytest.fixture
def call(monkeypatch):
    def run(item, *words):
        patched = []

        def patch(_path, body):
            patched.append(body["spec"])
            return {**item, "spec": {**item["spec"], **body["spec"]}}

        api = SimpleNamespace(get=lambda _path: item, patch=patch)
        monkeypatch.setattr(rebalances, "link_to", lambda _: Link(api, "shop"))
        ended = waiting("Moved", completionTime="2026-01-01T00:01:00Z")
        ended["status"]["conditions"][0] |= {"status": "True", "message": "1 pod has moved"}
        monkeypatch.setattr(Asking, "followed", lambda *_: ended)
        done = CliRunner().invoke(main, ["approve", "move-x", *words])
        return SimpleNamespace(code=done.exit_code, out=done.stdout, err=done.stderr, did=patched)

    return run


def test_a_dry_run_shows_plan_cost_and_hash_and_approves_nothing(call):
    found = call(waiting(), "--dry-run")
    assert (found.code, found.did) == (0, []), found.err
    move = "  1. Move shop/a (3.0 GiB, 30 s) from group G0 of n1 to group G1 of n2."
    assert move in found.out.splitlines()
    assert found.out.splitlines()[-1] == "would approve plan abc: 1 move, 3.0 GiB, about 30 s"


def test_an_approval_names_the_plan_that_was_shown(call):
    found = call(waiting())
    assert (found.code, found.did) == (0, [{"approvedPlan": "abc"}])
    assert found.out.splitlines()[-1] == "1 pod has moved"


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_programs_read_the_request_alone(call, words):
    found = call(waiting(), *words, "-o", "json")
    assert json.loads(found.out)["status"]["plan"]["hash"] == "abc"
    name = call(waiting(), *words, "-o", "name").out
    assert name == "rebalancerequest.kyb.ai/move-x\n"


def test_what_has_ended_or_has_no_plan_can_not_be_approved(call):
    over = call(waiting("NoPlan", completionTime="2026-01-01T00:01:00Z"), "--dry-run")
    assert (over.code, "it has ended: it waits" in over.err) == (1, True)
    bare = waiting()
    del bare["status"]["plan"]
    for words in ((), ("--dry-run",)):
        found = call(bare, *words)
        assert (found.code, found.did, "no plan yet" in found.err) == (1, [], True)


def test_what_is_approved_is_said_to_be(call):
    item = waiting("Moving")
    item["spec"]["approvedPlan"] = "abc"
    found = call(item, "--dry-run").out
    assert "plan abc (1 move, 3.0 GiB, about 30 s) is approved already" in found


def test_how_long_the_rest_of_a_plan_takes():
    item = waiting("Moving", estimatedCompletionTime="2026-01-01T00:02:00Z")
    request = REBALANCES.read(item)
    assert REBALANCES.progress(request, request.status.ready_at - 40) == "it waits, about 40 s left"
    assert REBALANCES.progress(request, request.status.ready_at + 1) == "it waits"


@pytest.mark.parametrize(
    "words",
    [
        ("move", "a", "--to", "n2"),
        ("move", "a", "--to", "n2", "--approve"),
        ("rebalance", "--dry-run"),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_without_a_plan_in_time_there_is_none_to_approve(monkeypatch, words, form):
    queued = waiting("Queued")
    del queued["status"]["plan"]
    api = SimpleNamespace(post=lambda _path, _body: queued, delete=lambda _path: None)
    monkeypatch.setattr(rebalances, "link_to", lambda _: Link(api, "shop"))
    monkeypatch.setattr(Asking, "followed", lambda *_: queued)
    done = CliRunner().invoke(main, [*words, "-o", form])
    assert done.exit_code == 3, done.output
    assert "Approve it" not in done.output
    assert "is not done in time: it waits" in done.stderr


def test_a_request_that_may_move_nothing_is_none(monkeypatch):
    monkeypatch.setattr(rebalances, "link_to", lambda _: pytest.fail("it is asked for"))
    for words in ((), ("--dry-run",)):
        done = CliRunner().invoke(main, ["rebalance", "--moves", "0", *words])
        assert (done.exit_code, "--moves 0" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("a", "--to", "n2"), {"pod": "a", "to": {"node": "n2"}}),
        (
            ("--model", "birch", "--to", "n2/G1"),
            {"model": "birch", "to": {"node": "n2", "group": "G1"}},
        ),
        (("--model", "birch", "--to", "G1"), None),
        (("a", "--model", "birch", "--to", "n2"), None),
        (("--to", "n2"), None),
    ],
)
def test_what_a_move_asks_for(monkeypatch, words, wanted):
    asked = []
    monkeypatch.setattr(rebalances, "ask", lambda _what, spec, _options, **_: asked.append(spec))
    done = CliRunner().invoke(main, ["move", *words])
    assert (done.exit_code, asked) == ((0, [{"move": wanted}]) if wanted else (2, []))
