"""What the commands that work through the API server show, and to whom."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from kybernate import keys
from kybernate.api.requests import ask_for, read_request
from kybernate.cli import begin, completing, doctor, explain, main
from kybernate.cli.cluster import explaining, lines, link, requests
from kybernate.cli.cluster.asking import Asking
from kybernate.cli.cluster.requests import CHECKPOINTS
from kybernate.cli.needs import NEEDS, needs
from kybernate.cli.output import Listing, Row, follow, show
from kybernate.core.doctor.doctor import Finding, Level
from kybernate.core.requests.asked import Copied
from kybernate.core.requests.checkpoint import Mode, Status
from kybernate.errors import RefusedError, RetryableError
from kybernate.types import Tier

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SEAT = {"name": "G0-seat-1", "group": "G0", "namespace": "shop"}
NODE = {
    "metadata": {"name": "n1"},
    "status": {
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-0",
                "product": "H100",
                "memoryBytes": 1 << 36,
                "healthy": False,
            }
        ],
        "groups": [
            {
                "name": "G0",
                "resource": "kyb.ai/gpu-1x-seat",
                "gpus": ["GPU-0"],
                "seats": 3,
                "activeSlots": 1,
            }
        ],
        "tiers": [{"name": "ram", "seats": 1, "usedBytes": 1 << 30}],
        "seats": [
            {**SEAT, "uid": "u1", "pod": "a", "state": "active", "since": "2026-01-01T00:00:00Z"},
            {**SEAT, "uid": "u2", "pod": "b", "state": "parked", "tier": "ram", "new": "word"},
            {**SEAT, "uid": "u3", "pod": "c", "state": "waking", "namespace": "lab"},
        ],
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "Drained",
                "message": "it is drained (driver)",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    },
}


def pod(name: str, uid: str, node: str = "", *conditions: dict[str, str]) -> dict[str, object]:
    limits = {keys.seat_resource(1): "1"}
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": uid},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"limits": limits}}],
        },
        "status": {"conditions": list(conditions)},
    }


def test_seats_are_those_of_nodes_and_pods_that_hold_none():
    nodes, problems = lines.statuses([NODE])
    waits = {"type": "PodScheduled", "status": "False", "message": "no free seat"}
    serves = {"type": keys.WAKEABLE_CONDITION, "status": "True", "message": "serves"}
    over = {**pod("over", "u7"), "status": {"phase": "Failed"}}
    items = [pod("a", "u1", "n1"), pod("p", "u5", "", waits), pod("q", "u6", "n2", serves), over]
    found = lines.seat_lines(nodes, items)
    assert problems == []
    assert [(one.pod, one.state, one.reason) for one in found] == [
        ("c", "waking", ""),
        ("a", "active", ""),
        ("b", "parked", ""),
        ("p", "pending", "no free seat"),
        ("q", "wakeable", "serves"),
    ]
    shop = lines.seats_of(found, "shop", NOW)
    assert [row.name for row in shop.rows] == ["pod/a", "pod/b", "pod/p", "pod/q"]
    assert shop.rows[0].cells[5] == "24h"
    assert shop.rows[0].cells[8] == "-", "it has not woken yet"
    assert len(lines.seats_of(found, None, NOW).rows) == 5


def test_top_says_who_is_on_a_gpu_and_where_nothing_starts():
    nodes, _ = lines.statuses([NODE, {"metadata": {"name": "n2"}}])
    (gpu,) = lines.gpus_of(nodes).rows
    assert gpu.cells == ("n1", "0", "H100", "64.0 GiB", "lost", "shop/a", "1", "1")
    (tier,) = lines.tiers_of(nodes).rows
    assert tier.cells == ("n1", "ram", "1", "1.0 GiB", "-")
    assert [row.cells for row in lines.unready(nodes).rows] == [
        ("n1", "no", "it is drained (driver)"),
        ("n2", "no", "its agent has not reported yet"),
    ]


def test_a_node_that_can_not_be_read_hides_no_other():
    other = {"metadata": {"name": "n3"}, "status": {"gpus": [{"index": "first"}]}}
    nodes, problems = lines.statuses([other, NODE])
    assert list(nodes) == ["n1"]
    assert len(problems) == 1
    assert problems[0].startswith("GPUNode n3: status.gpus.0")


def listing(*pods: tuple[str, str]) -> Listing:
    rows = tuple(Row(f"pod/{name}", {"state": state}, (name, state, "x")) for name, state in pods)
    return Listing(("POD", "STATE", "MORE"), 2, rows, "There is none.")


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("table", "POD  STATE\na    parked\n"),
        ("wide", "POD  STATE   MORE\na    parked  x\n"),
        ("name", "pod/a\n"),
        ("yaml", "- state: parked\n"),
        ("json", '[\n  {\n    "state": "parked"\n  }\n]\n'),
    ],
)
def test_each_form(capsys, form, told):
    show(listing(("a", "parked")), form)
    assert capsys.readouterr().out == told


def test_what_a_tenant_wrote_moves_no_cursor(capsys):
    show(listing(("a", "\x1b[2J\x1b]0;root\x07")), "table")
    explain.show({"pod": "shop/a", "summary": "\x1b[31mit waits", "values": []})
    rows = [{"annotation": keys.TURN, "value": "[/b]\x9b2J", "source": "[x]"}]
    explain.show({"pod": "shop/a", "summary": "", "values": rows})
    told = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b"} & set(told)
    assert "[/b]?2J" in told


DONE = {"type": "Complete", "status": "True", "reason": "Evicted", "message": "it is parked"}


class Refusing:
    """An API server with a node of three seats, of which one namespace takes no requests, and one
    deletes them."""

    def __init__(self):
        self.posted = []

    def get(self, _path):
        return NODE

    def patch(self, _path, _body):
        return {}

    def post(self, path, body):
        if "/lab/" in path:
            raise RefusedError("exceeded quota: requests")
        self.posted.append(body["spec"]["pod"])
        return body


def test_a_namespace_that_takes_no_requests_holds_up_no_other_of_a_drain(monkeypatch):
    api = Refusing()
    monkeypatch.setattr(requests, "link_to", lambda _: link.Link(api, None))

    def followed(_asking, _link, made, _until):
        raise click.ClickException(f"somebody has deleted that of {made['spec']['pod']}")

    monkeypatch.setattr(Asking, "followed", followed)
    found = CliRunner().invoke(requests.drain, ["n1"])
    assert sorted(api.posted) == ["a", "b"]
    assert "evict of lab/c failed: exceeded quota: requests" in found.stderr
    assert "deleted that of a" in found.stderr
    assert "deleted that of b" in found.stderr
    assert found.exit_code == 1


def test_a_pod_that_comes_just_before_its_node_is_cordoned_is_parked_with_the_others(monkeypatch):
    api = Refusing()
    before = json.loads(json.dumps(NODE))
    del before["status"]["seats"][0]
    api.get = lambda _path: NODE if api.cordoned else before
    api.cordoned = False
    api.patch = lambda _path, _body: setattr(api, "cordoned", True)
    monkeypatch.setattr(requests, "link_to", lambda _: link.Link(api, None))
    monkeypatch.setattr(Asking, "followed", lambda *_: {})
    monkeypatch.setattr(requests, "_end", lambda _link, made, *_: (made, 0))
    CliRunner().invoke(requests.drain, ["n1", "-o", "json"])
    assert sorted(api.posted) == ["a", "b"]


def test_an_api_server_that_is_away_for_one_request_leaves_no_others_unnamed(monkeypatch):
    api = Refusing()

    def post(path, body):
        if "/lab/" in path:
            raise RetryableError("the API server can't be asked now")
        return body

    api.post = post
    monkeypatch.setattr(requests, "link_to", lambda _: link.Link(api, None))
    monkeypatch.setattr(requests, "_end", lambda _link, made, *_: (made, 0))
    found = CliRunner().invoke(requests.drain, ["n1", "-o", "json"])
    assert "evict of lab/c failed: the API server" in found.stderr
    assert [one["spec"]["pod"] for one in json.loads(found.stdout)] == ["a", "b"]
    assert found.exit_code == 1


@pytest.mark.parametrize("why", ["", " ", "x" * 1025])
def test_a_reason_that_is_none_is_a_wrong_command_line(monkeypatch, why):
    monkeypatch.setattr(requests, "link_to", lambda _: link.Link(Refusing(), None))
    found = CliRunner().invoke(requests.drain, ["n1", "--dry-run", "--why", why])
    assert (found.exit_code, "write 1 to 1024 characters" in found.output) == (2, True)


def test_each_request_of_a_drain_says_why(monkeypatch):
    monkeypatch.setattr(requests, "link_to", lambda _: link.Link(Refusing(), None))
    words = ["n1", "--dry-run", "--why", "new driver", "-o", "json"]
    told = json.loads(CliRunner().invoke(requests.drain, words).stdout)
    assert [one["metadata"]["annotations"] for one in told] == [{keys.WHY: "new driver"}] * 3


@pytest.mark.parametrize("tried", [True, False])
@pytest.mark.parametrize("form", ["json", "yaml", "name"])
def test_programs_read_the_requests_of_a_drain_alone(monkeypatch, form, tried):
    monkeypatch.setattr(requests, "link_to", lambda _: link.Link(Refusing(), None))
    over = {"completionTime": "2026-01-01T00:00:05Z", "conditions": [DONE]}

    def followed(_asking, _link, made, _until):
        pod = made["spec"]["pod"]
        meta = {"name": f"evict-{pod}-x", "namespace": "shop", "uid": "r"}
        meta["creationTimestamp"] = "2026-01-01T00:00:00Z"
        return {**made, "metadata": meta, "status": over}

    monkeypatch.setattr(Asking, "followed", followed)
    words = ["n1", "-o", form, *(["--dry-run"] if tried else [])]
    found = CliRunner().invoke(requests.drain, words)
    assert ("cordon" in found.stderr, found.exit_code) == (True, 0 if tried else 1)
    if form == "name":
        ends = ("a-", "b-", "c-") if tried else ("a-x", "b-x")
        assert found.stdout.split() == [f"checkpointrequest.kyb.ai/evict-{end}" for end in ends]
        return
    told = (json.loads if form == "json" else yaml.safe_load)(found.stdout)
    assert [one["spec"]["pod"] for one in told] == (["a", "b", "c"] if tried else ["a", "b"])
    assert all(("status" in one) is not tried for one in told)


def asked_of_a_node(monkeypatch, *words):
    monkeypatch.setattr(explaining, "link_to", lambda _: link.Link(Refusing(), None))
    return CliRunner().invoke(main, ["explain", *words])


def test_a_node_is_explained_by_its_object(monkeypatch):
    found = asked_of_a_node(monkeypatch, "node", "n1")
    first, group = found.stdout.splitlines()[:2]
    assert first == "node n1: nothing starts or wakes: it is drained (driver)"
    assert group == "group G0 (kyb.ai/gpu-1x-seat): 3 seats, 1 of 1 active, 0 free"
    assert re.search(r"^shop +b +parked +ram", found.stdout, re.MULTILINE)
    told = json.loads(asked_of_a_node(monkeypatch, "node", "n1", "-o", "json").stdout)
    assert (told["ready"], told["why"]) == (False, "it is drained (driver)")
    assert [one["free"] for one in told["groups"]] == [0]
    assert [one["pod"] for one in told["seats"]] == ["c", "a", "b"]


def test_a_seat_is_explained_by_its_nodes_object(monkeypatch):
    row = {**SEAT, "uid": "u9", "pod": "x", "state": "parked", "tier": "nvme", "wakes": 2}
    row |= {"name": "G0-seat-9", "reason": "it was idle", "savedBytes": 3 << 30, "model": "qwen"}
    row |= {"lastWakeMs": 410.0, "heldBytes": 4 << 30, "operation": "save", "requests": 7}
    seats = [*NODE["status"]["seats"], row]
    more = {**NODE, "status": {**NODE["status"], "seats": seats}}
    monkeypatch.setattr(Refusing, "get", lambda *_: more)
    assert asked_of_a_node(monkeypatch, "seat", "n1/G0-seat-9").stdout.splitlines() == [
        "seat n1/G0-seat-9: pod shop/x is parked (nvme): it was idle",
        "under way: save",
        "model: qwen",
        "GPU memory: 4.0 GiB",
        "artifact: 3.0 GiB",
        "7 requests, 0 s active, 2 wakes, the last one in 410 ms",
    ]
    form = asked_of_a_node(monkeypatch, "seat", "n1/G0-seat-9", "-o", "json").stdout
    assert json.loads(form)["saved_bytes"] == 3 << 30


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("G0-seat-1", 2, "write NODE/SEAT"),
        ("n1/G7-seat-1", 1, "nobody has seat G7-seat-1 of n1; taken are: G0-seat-1"),
    ],
)
def test_a_seat_that_is_none_is_told(monkeypatch, name, code, said):
    found = asked_of_a_node(monkeypatch, "seat", name)
    assert (found.exit_code, said in found.stderr) == (code, True), found.stderr


def test_nodes_are_completed_by_their_objects(monkeypatch):
    nodes = {"items": [{"metadata": {"name": name}} for name in ("gpu-1", "gpu-2", "x")]}
    api = type("Api", (), {"get": lambda *_, **__: nodes})()
    monkeypatch.setattr(link, "link_to", lambda _: link.Link(api, None))
    for verb in (["explain", "node"], ["drain"]):
        assert completing.for_kubectl(main, [*verb, "gpu"]) == ["gpu-1", "gpu-2", ":4"]


def test_no_row_is_folded_where_a_program_reads_it(capsys):
    show(listing(("a" * 300, "parked")), "table")
    assert len(capsys.readouterr().out.splitlines()) == 2
    show(listing(), "table")
    assert capsys.readouterr().out == "There is none.\n"


def test_a_watch_tells_changes_alone(capsys):
    states = [
        listing(("a", "parked"), ("b", "active")),
        listing(("a", "waking"), ("b", "active")),
        listing(("a", "waking")),
    ]
    follow(states, "table")
    assert capsys.readouterr().out == "a  parked  x\nb  active  x\na  waking  x\npod/b is gone\n"
    follow(states, "json")
    told = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["parked", "active", "waking"]


def test_a_watch_tells_pods_of_one_name_in_two_namespaces_apart(capsys):
    def state(second):
        rows = tuple(
            Row("pod/a", {"state": one}, (where, one, "x"))
            for where, one in (("lab", "parked"), ("shop", second))
        )
        return Listing(("NAMESPACE", "STATE", "MORE"), 2, rows, "")

    follow([state("parked"), state("parked"), state("waking")], "table")
    told = capsys.readouterr().out.splitlines()
    assert told == ["lab  parked  x", "shop  parked  x", "shop  waking  x"]


def test_how_far_a_request_is_and_how_long_the_rest_takes():
    body = ask_for(Mode.SNAPSHOT, "a", Tier.OBJECT, 60, 5)
    meta = {
        "uid": "r",
        "namespace": "shop",
        "name": "n",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    request = read_request({**body, "metadata": meta})
    assert (request.deadline_s, request.keep_s, request.tier) == (60.0, 5.0, Tier.OBJECT)
    assert body["metadata"]["generateName"] == "snapshot-a-"
    assert CHECKPOINTS.progress(request, 0.0) == "snapshot of a: nobody answers yet"
    copied = replace(
        request, status=Status(message="it is copied", copied=Copied(1 << 30, 4 << 30, 130.0))
    )
    assert CHECKPOINTS.progress(copied, 100.0) == (
        "snapshot of a: it is copied; 1.0 GiB of 4.0 GiB, about 30 s left"
    )
    assert CHECKPOINTS.progress(copied, 131.0).endswith("1.0 GiB of 4.0 GiB")


def test_a_pods_long_name_leaves_room_for_the_api_servers_digits():
    name = ask_for(Mode.PARK, "a" * 253, None, 60, 5)["metadata"]["generateName"]
    assert len(name) <= 248


def test_each_command_says_whom_it_asks_and_what_that_needs():
    context = click.Context(main)
    for path in NEEDS:
        command = main
        for name in path.split():
            command = command.get_command(context, name)
        assert command.epilog == needs(path)
    assert {path.partition(" ")[0] for path in NEEDS} == set(main.list_commands(context))
    assert main.get_command(context, "agent").commands["park"].epilog == needs("agent")


FOR_PROGRAMS, WATCHED, TRIED, WHY = {"json", "yaml"}, "--watch", "--dry-run", "--why"
VERBS: dict[str, set[str]] = {
    "top": {WATCHED},
    "seats": {WATCHED},
    "models": {WATCHED},
    "policy": {WATCHED},
    "explain pod": set(),
    "explain node": set(),
    "explain seat": set(),
    "park": {TRIED, WHY},
    "wake": {TRIED, WHY},
    "snapshot": {TRIED, WHY},
    "restore": {TRIED, WHY},
    "clone": {TRIED, WHY},
    "move": {TRIED, WHY},
    "rebalance": {TRIED, WHY},
    "approve": {TRIED},
    "drain": {TRIED, WHY},
    "pin": {TRIED, WHY},
    "unpin": {TRIED},
    "artifacts ls": {WATCHED},
    "doctor": set(),
    "support-bundle": {TRIED},
}
"""What people do from anywhere, with the options that each has beside -o."""


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_speaks_to_programs_and_teaches_people(verb):
    command = main
    for word in verb.split():
        command = command.get_command(click.Context(main), word)
    options = {name: one for one in command.params for name in one.opts}
    assert VERBS[verb] <= set(options)
    assert set(options["-o"].type.choices) >= FOR_PROGRAMS
    assert {"--kubeconfig", "--context"} <= set(options)
    told = CliRunner().invoke(main, [*verb.split(), "--help"]).output
    assert len(told.partition("Options:")[0].splitlines()) > 4
    silent = [one.name for one in command.params if isinstance(one, click.Option) and not one.help]
    assert silent == [], "each option says what it does"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_findings_are_told_to_programs_in_either_form(monkeypatch, form):
    found = (Finding("nodes", Level.WARN, "n1: no GPUs", "see its agent"),)
    monkeypatch.setattr(doctor, "_of_cluster", lambda _: found)
    done = CliRunner().invoke(main, ["doctor", "--cluster", "-o", form])
    document = (json.loads if form == "json" else yaml.safe_load)(done.output)
    (told,) = document["findings"]
    assert (told["check"], told["level"], document["sound"]) == ("nodes", "warn", True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes(shell):
    found = CliRunner().invoke(main, ["completion", shell])
    assert found.exit_code == 0
    assert "_KYBERNATE_COMPLETE" in found.output


def test_kubectl_is_told_the_words_and_that_they_are_no_files(tmp_path):
    assert completing.for_kubectl(main, ["sna"])[0].split("\t")[0] == "snapshot"
    told = completing.for_kubectl(main, ["park", "--ti"])
    assert told[0].startswith("--tier\t")
    assert told[-1] == ":4"
    nowhere = ["park", "--kubeconfig", str(tmp_path / "none"), ""]
    assert completing.for_kubectl(main, nowhere) == [":4"]


@pytest.mark.parametrize(
    ("program", "shown"), [("/x/kubectl-kyb", "kubectl kyb"), ("kybernate", "kybernate")]
)
def test_help_speaks_of_the_command_as_it_was_called(monkeypatch, capsys, program, shown):
    monkeypatch.setattr(sys, "argv", [program, "park", "--help"])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(SystemExit):
        begin()
    assert capsys.readouterr().out.startswith(f"Usage: {shown} park")


@pytest.mark.parametrize(
    "words", [["top"], ["seats"], ["park", "llama"], ["clients", "list"], ["node", "ls"]]
)
def test_who_has_no_kubeconfig_is_told_to_name_one(words, tmp_path):
    found = CliRunner().invoke(main, [*words, "--kubeconfig", str(tmp_path / "none")])
    assert found.exit_code == 1
    assert found.output == (
        f"Error: kubeconfig: there is no {tmp_path}/none; name the file that kubectl takes by "
        "--kubeconfig or KUBECONFIG\n"
    )


def test_of_several_kubeconfigs_one_is_enough(tmp_path):
    (tmp_path / "second").touch()
    both = Path(f"{tmp_path}/none{os.pathsep}{tmp_path}/second")
    assert link.kubeconfig(both) == both


@pytest.mark.parametrize("time", ["soon", "0s", "25h"])
@pytest.mark.parametrize("words", [["park", "llama"], ["drain", "gpu-7"]])
def test_a_time_that_is_none_is_a_wrong_command_line(words, time):
    found = CliRunner().invoke(main, [*words, "--timeout", time])
    assert found.exit_code == 2
    assert "Invalid value for --timeout: " in found.output
