"""`kybernate explain`, against an extender's pages over real mutual TLS."""

from __future__ import annotations

import io
import json
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from kybernate import keys
from kybernate.adapters.pki import Folder, Validity
from kybernate.cli import main
from kybernate.cli.cluster.link import Link
from kybernate.cli.explain import _look, show
from kybernate.core.ledger.ledger import Claim, NodeSeats
from kybernate.core.placement import Demand
from kybernate.core.views.dump import Dump, Pending, encode
from kybernate.errors import RefusedError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOUND: dict[str, Any] = {
    "pod": "team-a/llama",
    "summary": "12 nodes: no free 2x seat; 3: no new seats are taken",
    "groups": [
        {
            "kind": "seat",
            "group": "G01",
            "sentence": "all 3 seats of G01 are taken",
            "nodes": 12,
            "examples": ["n1", "n2"],
        },
        {
            "kind": "ready",
            "group": None,
            "sentence": "drained",
            "nodes": 1,
            "examples": ["n3"],
        },
    ],
    "scheduler": "0/15 nodes are available: 15 Insufficient kyb.ai/gpu-2x-seat.",
}


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = {"/explain/team-a/llama": (200, FOUND)}
        status, body = found.get(self.path, (404, {"Error": f"nothing at {self.path}"}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    lasts = timedelta(days=1)
    Folder(folder).init([], Validity(lasts, lasts, timedelta(hours=1)), datetime.now(UTC))
    return folder


@pytest.fixture(scope="module")
def url(tls: Path) -> Iterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls / "ca.crt")
    context.load_cert_chain(tls / "extender.crt", tls / "extender.key")
    context.verify_mode = ssl.CERT_REQUIRED
    server = HTTPServer(("127.0.0.1", 0), Page)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(tls: Path, url: str, *more: str) -> tuple[int, str]:
    where = ["--tls-dir", str(tls), "--extender", url]
    result = CliRunner().invoke(main, ["explain", "pod", *more, *where])
    return result.exit_code, result.output


def test_json_is_what_the_extender_said(tls: Path, url: str) -> None:
    status, output = run(tls, url, "llama", "-n", "team-a", "--json")
    assert (status, json.loads(output)) == (0, FOUND)


def test_people_see_a_line_per_group() -> None:
    console = Console(file=io.StringIO(), width=100)
    show(FOUND, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.startswith("team-a/llama: 12 nodes: no free 2x seat; 3: no new seats are taken\n")
    assert "all 3 seats of G01 are taken" in text
    assert "n1, n2, …" in text
    assert "The kube-scheduler says: 0/15 nodes are available" in text


def test_a_pod_that_is_none_is_an_error_in_words(tls: Path, url: str) -> None:
    status, output = run(tls, url, "a/../b")
    assert (status, output) == (1, "Error: nothing at /explain/default/a%2F..%2Fb\n")


def test_where_no_extender_is_a_next_step_is_named(tls: Path, tmp_path: Path) -> None:
    status, output = run(tls, "https://127.0.0.1:9", "llama")
    assert status == 1
    assert "kubectl -n kyb-system port-forward" in output
    assert "write it as https://host:port" in run(tls, "http://127.0.0.1:9", "llama")[1]
    status, output = run(tmp_path, "https://127.0.0.1:9", "llama")
    assert "must hold ca.crt, scheduler.crt and scheduler.key" in output


@pytest.fixture
def dump(tmp_path: Path) -> str:
    gpu = Gpu(GpuUuid("a"), 0, "H100", 80)
    group = Group(GroupName("G0"), "kyb.ai/gpu-1x-seat", (gpu.uuid,), 1)
    node = NodeSeats(NodeName("n1"), (gpu,), {}, (group,))
    taken, waits, strange = (PodRef("d", name, PodUid(name)) for name in ("a", "b", "c"))
    claim = Claim(taken, node.name, group.name, group.resource, 24)
    pending = (Pending(waits, Demand(group.resource)), Pending(strange, None, "vram: odd"))
    made = Dump("2026-01-01T00:00:00Z", "best-fit", (node,), (claim,), pending)
    (tmp_path / "dump.json").write_text(json.dumps(encode(made)))
    return str(tmp_path / "dump.json")


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("a", "it is bound to n1, group G0"),
        ("b", "1 node: no free 1x seat; suspending d/a (24) would fit it on n1, group G0"),
        ("c", "vram: odd"),
    ],
)
def test_a_dump_tells_the_same_without_an_extender(dump: str, name: str, summary: str) -> None:
    asked = ["explain", "pod", name, "-n", "d", "--dump", dump]
    result = CliRunner().invoke(main, [*asked, "--json"])
    assert json.loads(result.output)["summary"] == summary
    assert CliRunner().invoke(main, asked).exit_code == 0


def test_a_pod_that_is_not_in_the_dump_is_an_error(dump: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["explain", "pod", "x", "--dump", dump])
    assert (result.exit_code, "no pod default/x in" in result.output) == (1, True)
    (tmp_path / "odd").write_text("{")
    result = CliRunner().invoke(main, ["explain", "pod", "x", "--dump", str(tmp_path / "odd")])
    assert (result.exit_code, "is not JSON" in result.output) == (1, True)


def test_an_extender_of_another_authority_is_not_believed(url: str, tmp_path: Path) -> None:
    lasts = timedelta(days=1)
    Folder(tmp_path).init([], Validity(lasts, lasts, timedelta(hours=1)), datetime.now(UTC))
    status, output = run(tmp_path, url, "llama", "-n", "team-a")
    assert status == 1
    assert "CERTIFICATE_VERIFY_FAILED" in output


class ApiServer:
    """What an API server answers, by the end of the path; the others it refuses."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def get(self, path: str, *_: object, **__: object) -> Any:
        found = self.answers.get(path.rsplit("/", 1)[-1])
        if found is None:
            raise RefusedError(f"GET {path}: you may not")
        return found


def seated(**notes: str) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": "a", "uid": "u", "labels": {"workload": "training"}}
    limits = {keys.seat_resource(1): "1"}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {"metadata": {**meta, "annotations": notes}, "spec": {"containers": containers}}


def looked(**answers: Any) -> dict[str, Any]:
    link = Link(ApiServer(events={"items": []}, **answers), "shop")  # type: ignore[arg-type]
    return _look(link, "a")


NIGHTS = {
    "metadata": {"namespace": "shop", "name": "nights", "uid": "p"},
    "spec": {
        "selector": {"matchLabels": {"workload": "training"}},
        "idle": {"ram": "1h"},
        "schedule": [{"cron": "* * * * *", "duration": "2m", "turn": {"mode": "on-request"}}],
    },
}


def test_each_value_is_told_with_where_it_comes_from() -> None:
    wrong = {"metadata": {"name": "wrong"}, "spec": {"idle": {"vram": "soon"}, "precedence": 9}}
    found = looked(a=seated(), checkpointpolicies={"items": [wrong, NIGHTS]})
    assert found["policy"] == "nights"
    turn, idle, *unsaid = found["values"]
    assert [one["value"] for one in unsaid] == [""] * 4
    assert (turn["annotation"], turn["value"]) == (keys.TURN, "on-request")
    assert turn["source"] == "a schedule of policy nights"
    assert turn["until"].endswith("Z")
    assert (idle["value"], idle["source"]) == ("ram=1h", "policy nights")
    own = looked(a=seated(**{keys.TURN: "always"}), checkpointpolicies={"items": [NIGHTS]})
    turn = own["values"][0]
    assert turn == {
        "annotation": keys.TURN,
        "value": "always",
        "source": "the pod's annotation",
    }
    killed = {**NIGHTS, "spec": {**NIGHTS["spec"], "onPreempt": "kill"}}
    said = looked(a=seated(), checkpointpolicies={"items": [killed]})["values"][-1]
    assert (said["annotation"], said["value"]) == (keys.ON_PREEMPT, "kill")
    none = looked(a=seated(), checkpointpolicies={"items": []})
    *others, priority = [one["source"] for one in none["values"]]
    assert {*others} == {"the agent's setting"}
    assert priority == "the pod's PriorityClass"
    out = io.StringIO()
    show(found, Console(file=out, width=120))
    assert "a schedule of policy nights" in out.getvalue()


def test_who_may_not_list_policies_is_told_the_rest() -> None:
    found = looked(a=seated())
    assert "values" not in found
    assert found["pod"] == "shop/a"
