"""A support bundle: what is given away and what never is, its limits, and what can't be had."""

from __future__ import annotations

import json
import tarfile
import time

import pytest
from click.testing import CliRunner

from kybernate import keys
from kybernate.cli import main
from kybernate.cli.bundle import commands, pieces, redacting
from kybernate.cli.bundle.archive import Room, write
from kybernate.cli.bundle.pieces import Piece, Taken
from kybernate.cli.cluster.link import Link
from kybernate.errors import NotFoundError, RefusedError, RetryableError

SECRET = "hunter2hunter2"

CONTAINER = {
    "name": "c",
    "image": "x:1",
    "env": [
        {"name": "PLAIN", "value": SECRET},
        {"name": "TAKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    "command": ["serve", f"--x={SECRET}"],
    "args": [SECRET],
    "lifecycle": {"preStop": {"exec": {"command": [SECRET]}}},
    "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X", "value": SECRET}]}},
    "resources": {"limits": {"kyb.ai/gpu-1x-seat": "1"}},
    "of a newer Kubernetes": SECRET,
}
POD = {
    "metadata": {
        "name": "a",
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"x": SECRET}),
            keys.VRAM: "24Gi",
        },
        "managedFields": [{"fieldsV1": {"x": SECRET}}],
    },
    "spec": {
        "containers": [CONTAINER],
        "initContainers": [CONTAINER],
        "ephemeralContainers": [CONTAINER],
        "volumes": [{"name": "v", "csi": {"volumeAttributes": {"x": SECRET}}}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": [SECRET]}],
    },
    "status": {
        "containerStatuses": [{"state": {"terminated": {"message": SECRET, "exitCode": 3}}}]
    },
}


def test_of_a_pod_names_and_states_are_told_and_no_values():
    told = redacting.item(POD)
    assert SECRET not in json.dumps(told)
    (container,) = told["spec"]["containers"]
    assert container["resources"] == CONTAINER["resources"]
    assert [one["name"] for one in container["env"]] == ["PLAIN", "TAKEN"]
    assert container["env"][1]["valueFrom"]["secretKeyRef"]["name"] == "s"
    assert container[redacting.REDACTED] == ["lifecycle", "livenessProbe", "of a newer Kubernetes"]
    assert told["spec"]["volumes"] == [{"name": "v", "kind": ["csi"]}]
    assert told["metadata"]["annotations"][keys.VRAM] == "24Gi"
    assert told["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_a_pod_within_an_object_of_ours_is_one_too():
    template = {"spec": {"template": POD, "warmUp": [{"post": "/v1", "body": {"q": SECRET}}]}}
    told = redacting.item(template)
    assert SECRET not in json.dumps(told)
    assert told["spec"]["warmUp"][0]["post"] == "/v1"


def test_an_event_repeats_no_answer_of_a_tenant():
    about = {"involvedObject": {"kind": "Pod"}, "message": f"HTTP 500: {SECRET}"}
    assert SECRET not in json.dumps(redacting.item({**about, "reason": "Unhealthy"}))
    assert SECRET in json.dumps(redacting.item({**about, "reason": "NoSeat"}))


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {SECRET}",
        f"password={SECRET} retry",
        f'{{"api_key": "{SECRET}", "x": 1}}',
        f"postgresql://kyb:{SECRET}@db:5432/kyb",
        f"GET https://s3/x?X-Amz-Signature={SECRET}&y=1",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        f"{SECRET}\n-----END PRIVATE KEY-----\n",
        f"sk-{SECRET}{SECRET}",
        f"nvapi-{SECRET}{SECRET}",
        f'password: "two words, {SECRET}"',
        f'password="a\\"{SECRET}"',
        json.dumps({"said": json.dumps({"password": f"a {SECRET}", "x": 1})}),
        f"exec: serve --hub-token {SECRET} --port 80",
        f"passphrase: {SECRET}",
        "eyJhbGciOiJSUzI1NiJ9." + SECRET + "." + SECRET,
    ],
)
def test_what_looks_like_a_secret_is_redacted_in_any_text(line):
    told = redacting.text(f"{line}\nparked in 3 s" if "BEGIN" not in line else line)
    assert SECRET not in told
    assert redacting.REDACTED in told


@pytest.mark.parametrize(
    "line",
    [
        "seat G0-seat-1 of shop/a is parked (nvme) in 3.2 s; 24 GiB",
        "secret kyb-agent-tls is not there yet: waits",
        "https://kyb-registry.kyb-system.svc:9446/v1/artifacts?state=sealed",
        'kyb_agent_step_seconds_bucket{operation="wake",phase="all",le="0.1"} 3.0',
        "basic checks are done",
    ],
)
def test_what_is_none_stays(line):
    assert redacting.text(line).replace(redacting.REDACTED, "") in (line, "basic  are done")


@pytest.mark.parametrize(
    "hostile", ["a." * 200_000, "token" * 80_000, "eyJ" * 100_000, "-----" * 9]
)
def test_no_text_takes_long(hostile):
    begun = time.process_time()
    redacting.text(hostile)
    assert time.process_time() - begun < 5


def piece(file, body=b"x" * 10, note=""):
    def read():
        if isinstance(body, Exception):
            raise body
        return Taken(body, note)

    return Piece(file, None, read)


def written(path, pieces, most=1000, seconds=60.0):
    said = []
    told = write(path, pieces, ["p"], Room(most, time.monotonic() + seconds), said.append)
    with tarfile.open(path) as tar:
        names = [name.partition("/")[2] for name in tar.getnames()]
        manifest = json.load(tar.extractfile(tar.getnames()[-1]))
    return told, names, manifest, said


def test_what_can_not_be_had_holds_up_nothing_and_is_told(tmp_path):
    path = tmp_path / "b.tar.gz"
    pieces = [piece("a"), piece("b", RefusedError("you may not")), piece("c", note="the last")]
    told, names, manifest, said = written(path, pieces)
    assert names == ["a", "c", "manifest.json"]
    assert [(one.bytes, one.why) for one in told] == [
        (10, ""),
        (None, "you may not"),
        (10, "the last"),
    ]
    assert [one["file"] for one in manifest["files"]] == said == ["a", "b", "c"]
    assert (manifest["format"], manifest["problems"]) == (1, ["p"])
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_for_which_there_is_no_room_is_told_and_a_smaller_one_taken(tmp_path):
    pieces = [piece("a"), piece("b"), piece("c", b"y")]
    told, names, *_ = written(tmp_path / "b.tar.gz", pieces, most=15)
    assert names == ["a", "c", "manifest.json"]
    assert "--max-size" in told[1].why


def test_after_its_time_nothing_else_is_begun(tmp_path):
    told, names, _, said = written(tmp_path / "b.tar.gz", [piece("a")], seconds=-1)
    assert (names, said) == (["manifest.json"], [])
    assert "--timeout" in told[0].why


def test_no_other_file_is_overwritten_and_none_stays_that_is_half_done(tmp_path):
    path = tmp_path / "b.tar.gz"
    with pytest.raises(KeyboardInterrupt):
        written(path, [Piece("a", None, interrupt)])
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        written(path, [piece("a")])
    assert path.read_text() == "mine"


def interrupt():
    raise KeyboardInterrupt


class Api:
    """A cluster on which the account may list pods of the system and read their logs."""

    def __init__(self, log=b"line\n"):
        self.log, self.asked = log, []

    def get(self, path, query=None, *, timeout=10.0):
        assert timeout <= 30
        if path == "/apis/kyb.ai/v1alpha1":
            kinds = [("gpunodes", False), ("artifacts", True), ("artifacts/status", True)]
            kinds.append(("tierplacements", True))
            return {"resources": [{"name": name, "namespaced": ours} for name, ours in kinds]}
        if path == "/api/v1/namespaces/kyb-system/pods":
            return {"items": [SYSTEM_POD]}
        if path == "/version":
            return {"gitVersion": "v1.34.2"}
        if path.endswith("gpunodes"):
            token = (query or {}).get("continue")
            items = [{"metadata": {"name": "n2" if token else "n1"}}]
            return {"items": items, "metadata": {} if token else {"continue": "more"}}
        if path.endswith("tierplacements"):
            return {"items": [PLACEMENT], "metadata": {}}
        raise RefusedError(f"GET {path}: may not")

    def of_metadata(self):
        return self

    def tail(self, path, query, most, *, timeout):
        self.asked.append((path, dict(query)))
        if path.endswith("metrics"):
            raise RetryableError("no answer")
        return self.log[-most:]

    def post(self, path, body, *, timeout):
        assert path.endswith("selfsubjectaccessreviews")
        asked = body["spec"]["resourceAttributes"]
        if asked["resource"] == "nodes":
            raise NotFoundError("no such kind")
        return {"status": {"allowed": asked["subresource"] == "log"}}


PLACEMENT = {
    "metadata": {"name": "pin-a", "namespace": "shop", "annotations": {keys.WHY: "an audit"}},
    "spec": {"selector": {"matchLabels": {"kyb.ai/pod": "a"}}, "copies": {"object": 1}},
    "status": {
        "pinned": 1,
        "artifacts": ["shop/a@20260130T120000Z-00c0ffee"],
        "copies": [{"tier": "nvme", "node": "n1", "state": "Failed", "operation": "place-1"}],
    },
}
SYSTEM_POD = {
    "metadata": {"name": "kyb-agent-x", "namespace": "kyb-system", "uid": "u"},
    "spec": {
        "containers": [
            {"name": "agent", "ports": [{"name": "probes", "containerPort": 9447}], "env": []}
        ]
    },
    "status": {"containerStatuses": [{"name": "agent", "restartCount": 2}]},
}


@pytest.fixture
def call(monkeypatch, tmp_path):
    def run(api, *words):
        monkeypatch.setattr(commands, "link_to", lambda _: Link(api, None))
        monkeypatch.chdir(tmp_path)
        return CliRunner().invoke(main, ["support-bundle", *words])

    return run


def read(path, name):
    with tarfile.open(path) as tar:
        (found,) = (one for one in tar.getnames() if one.endswith(name))
        return tar.extractfile(found).read()


def test_logs_states_and_objects_are_taken_page_by_page(call, tmp_path):
    api = Api()
    found = call(api, "-f", "b.tar.gz", "-o", "json", "--since", "2h")
    assert found.exit_code == 0, found.output
    path = tmp_path / "b.tar.gz"
    nodes = json.loads(read(path, "objects/gpunodes.json"))
    assert [one["metadata"]["name"] for one in nodes] == ["n1", "n2"]
    (placement,) = json.loads(read(path, "objects/tierplacements.json"))
    assert placement == PLACEMENT, "which artifacts are kept, and which copies aren't there"
    told = {one["file"]: one for one in json.loads(found.stdout)}
    assert "no answer" in told["metrics/kyb-agent-x.txt"]["why"]
    assert "may not" in told["pods.json"]["why"]
    assert told["logs/kyb-agent-x/agent.previous.log"]["bytes"] == 5
    log = next(query for path, query in api.asked if path.endswith("/log"))
    assert (log["container"], log["sinceSeconds"]) == ("agent", 7200)
    assert "objects/artifacts/status.json" not in told
    assert "of" in found.stderr.splitlines()[-1]


def test_no_name_that_a_kubelet_tells_leads_out_of_the_bundle():
    status = {"containerStatuses": [{"name": "../../x"}, {"name": "agent"}]}
    pod = {"metadata": {"name": "kyb-agent-1"}, "status": status}
    found = [one.file for one in pieces._logs(Api(), pod, pieces.Limits(60, 1000))]
    assert found == [
        "logs/kyb-agent-1/______x.log",
        "logs/kyb-agent-1/agent.log",
    ]


def test_of_a_long_log_the_end_is_taken_and_no_half_line(call, tmp_path):
    api = Api(f"password={SECRET}\n".encode() + b"".join(b"line %d\n" % i for i in range(99)))
    found = call(api, "-f", "b.tar.gz", "-o", "json", "--max-file", "100")
    told = {one["file"]: one for one in json.loads(found.stdout)}
    body = read(tmp_path / "b.tar.gz", "agent.log")
    assert body.endswith(b"line 98\n")
    assert body.startswith(b"line ")
    assert len(body) <= 100
    assert "there is more" in told["logs/kyb-agent-x/agent.log"]["why"]


def test_a_dry_run_lists_what_would_be_taken_and_what_may_not_be(call, tmp_path):
    api = Api()
    found = call(api, "--dry-run", "-o", "json")
    may = {one["file"]: one["may"] for one in json.loads(found.stdout)}
    assert may["logs/kyb-agent-x/agent.log"] == "yes"
    assert may["objects/gpunodes.json"] == "no"
    assert may["system/nodes.json"] == "unknown"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".gz"]
    assert api.asked == [], "nothing is read"


@pytest.mark.parametrize(
    "words", [["--since", "soon"], ["--max-file", "0"], ["--timeout", "0s"], ["--max-size", "x"]]
)
def test_a_limit_that_is_none_is_a_wrong_command_line(call, words):
    assert call(Api(), *words).exit_code == 2


def test_a_file_that_is_there_is_a_sentence(call, tmp_path):
    (tmp_path / "b").touch()
    found = call(Api(), "-f", "b")
    assert (found.exit_code, "--file b: File exists" in found.output) == (1, True)
