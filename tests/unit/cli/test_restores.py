"""`kubectl kyb restore` and `clone`: what is asked for, and what people and programs are told."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from kybernate.cli import main
from kybernate.cli.cluster import asking
from kybernate.cli.cluster.link import Link
from kybernate.errors import RefusedError

ENDED = {"completionTime": "2026-01-01T00:00:05Z", "pod": "copy"}


def status(reason, said, message, **more):
    return {
        "conditions": [{"type": "Complete", "status": said, "reason": reason, "message": message}],
        **more,
    }


class Api:
    def __init__(self, states):
        self.states, self.posted, self.dry = states, [], []

    def post(self, path, body, params=None):
        assert path == "/apis/kyb.ai/v1alpha1/namespaces/shop/restorerequests"
        (self.dry if params else self.posted).append(body)
        meta = {"name": "a-x", "namespace": "shop", "uid": "r1"}
        return {**body, "metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.fixture
def call(monkeypatch):
    def run(*words, states=()):
        api = Api(states)
        link = Link(api, "shop")
        monkeypatch.setattr(asking, "link_to", lambda _options: link)
        monkeypatch.setattr(asking, "watched", lambda *_: seen(api))
        done = CliRunner().invoke(main, [*words])
        return SimpleNamespace(api=api, code=done.exit_code, out=done.stdout, err=done.stderr)

    def seen(api):
        meta = {"name": "a-x", "namespace": "shop", "uid": "r1"}
        for one in api.states:
            found = {**api.posted[0], "metadata": meta, "status": one}
            yield ([found] if one else [],)

    return run


DONE = status("Restored", "True", "pod copy on node n1 has continued from x", **ENDED)
WAITS = status("Restoring", "False", "pod copy: it waits its turn")


def test_a_clone_is_asked_for_and_followed(call):
    found = call("clone", "a", "--stopped", "--from-namespace", "team-a", states=(WAITS, DONE))
    (asked,) = found.api.posted
    assert asked["metadata"] == {"generateName": "a-"}
    assert asked["spec"] == {
        "source": {"pod": "a", "namespace": "team-a"},
        "as": "clone",
        "deadlineSeconds": 600,
        "stopped": True,
        "ttlSecondsAfterFinished": 86_400,
    }
    assert found.code == 0
    assert found.out.splitlines()[-1] == "pod/copy"
    assert "it waits its turn" in found.err


def test_a_successor_of_a_manifest_on_a_node(call, tmp_path):
    file = tmp_path / "pod.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {labels: {app: a}}\nspec: {containers: []}\n"
    )
    words = (
        "--as",
        "successor",
        "-f",
        str(file),
        "--node",
        "n2",
        "--name",
        "b",
        "--timeout",
        "90s",
    )
    spec = call("restore", "pod/a", *words, states=(DONE,)).api.posted[0]["spec"]
    assert spec["template"] == {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": []}}
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "n2"}
    assert (spec["as"], spec["podName"], spec["deadlineSeconds"]) == ("successor", "b", 90)
    assert spec["source"] == {"pod": "a"}


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        (status("NoArtifact", "False", "there is none", **ENDED), 1, "(NoArtifact): there is none"),
        (status("DeadlineExceeded", "False", "late", **ENDED), 3, "(DeadlineExceeded): late"),
        (status("Newer", "False", "x", **ENDED), 1, "only a newer kybernate knows"),
        (WAITS, 3, "not done in time: pod copy: it waits its turn"),
        (None, 1, "somebody has deleted"),
    ],
)
def test_what_comes_to_nothing_is_told_with_its_status(call, state, code, said):
    found = call("restore", "--artifact", "a.x", states=(state,))
    assert (found.code, said in found.err) == (code, True), found.err


def test_nobody_who_answers(call):
    found = call("restore", "a")
    assert (found.code, "is kyb-controller running?" in found.err) == (3, True)


def test_a_request_says_why_it_is_made(call):
    (asked,) = call("clone", "a", "--why", "it answers slowly", "--no-wait").api.posted
    assert asked["metadata"]["annotations"] == {"kyb.ai/why": "it answers slowly"}
    (silent,) = call("clone", "a", "--no-wait").api.posted
    assert "annotations" not in silent["metadata"]


def test_a_dry_run_asks_nothing(call):
    found = call("clone", "a", "--dry-run")
    assert (found.api.posted, len(found.api.dry), found.code) == ([], 1, 0)
    assert "may be asked for" in found.out


def test_for_programs(call):
    assert call("restore", "a", "-o", "name", "--no-wait").out == "pod/a-x\n"
    found = call("restore", "a", "-o", "json", states=(DONE,))
    assert json.loads(found.out)["status"]["pod"] == "copy"


@pytest.mark.parametrize(
    "words", [(), ("a", "--artifact", "b"), ("a", "--timeout", "0s"), ("a", "-f", "/nowhere")]
)
def test_what_can_not_be_meant(call, words):
    assert call("restore", *words).code == 2


def test_a_refusal_is_a_sentence(call, monkeypatch):
    def refuse(*_):
        raise RefusedError("eve may not ask for a pod")

    monkeypatch.setattr(Api, "post", refuse)
    found = call("clone", "a")
    assert (found.code, found.err) == (1, "Error: eve may not ask for a pod\n")


def test_a_template_s_pod_is_asked_for_and_its_bytes_are_told(call):
    coming = {**WAITS, "bytesDone": 1 << 30, "bytesTotal": 4 << 30}
    found = call("restore", "--from-template", "birch", states=(coming, DONE))
    (asked,) = found.api.posted
    assert asked["metadata"] == {"generateName": "birch-"}
    assert asked["spec"]["source"] == {"template": "birch"}
    assert "it waits its turn; 1.0 GiB of 4.0 GiB" in found.err
    for words in (
        (),
        ("a", "--from-template", "birch"),
        ("--artifact", "x", "--from-template", "b"),
    ):
        assert call("restore", *words).code == 2
