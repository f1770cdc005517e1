"""Another mutating webhook comes after ours and changes what we wrote: we are asked again."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.adapters.pki import Leaf, issue, make_authority
from tests.integration.hooks import until
from tests.integration.webhook.conftest import create, seat_pod
from tests.integration.webhook.test_admission import HOOKS, VRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("webhook")]

LATER = f"{HOOKS}/mutatingwebhookconfigurations"


class Later:
    """A webhook whose name sorts after ours; it answers with `steps` while they apply."""

    def __init__(self, pem: str) -> None:
        self.steps: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                patch = base64.b64encode(json.dumps(outer.steps).encode()).decode()
                response = {"uid": review["request"]["uid"], "allowed": True}
                review["response"] = {**response, "patchType": "JSONPatch", "patch": patch}
                body = json.dumps(review).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def later(
    control_plane: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Later]:
    now, day = datetime.now(UTC), timedelta(days=1)
    authority = make_authority("later", day, now)
    pair = issue(authority, Leaf("later", addresses=("127.0.0.1",), server=True), day, now)
    path = tmp_path_factory.mktemp("later") / "leaf.pem"
    path.write_bytes(pair.certificate_pem + pair.key_pem)
    running = Later(str(path))
    hook = {
        "name": "later.example.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {
            "url": f"https://127.0.0.1:{running.server.server_port}/",
            "caBundle": base64.b64encode(authority.certificate_pem).decode(),
        },
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
            | {"resources": ["pods"]}
        ],
    }
    api = control_plane.api()
    api.post(LATER, {"metadata": {"name": "zz-later"}, "webhooks": [hook]})
    running.steps = [{"op": "add", "path": "/metadata/labels/later", "value": "yes"}]

    def called() -> bool:
        made = create(api, namespace, seat_pod("asked", annotations=VRAM), dryRun="All")
        return bool(made["metadata"]["labels"].get("later"))

    until(called, "the API server doesn't ask the later webhook")
    yield running
    api.delete(f"{LATER}/zz-later")
    running.server.shutdown()
    running.server.server_close()


MESH = {"name": "mesh", "image": "localhost/mesh", "env": [{"name": "A", "value": "b"}]}


def test_what_a_mesh_injects_is_kept_and_ours_stays(
    control_plane: Cluster, namespace: str, later: Later
) -> None:
    pod = seat_pod("meshed", annotations=VRAM)
    probe = {"httpGet": {"path": "/", "port": 8000}}
    pod["spec"]["containers"][0]["readinessProbe"] = probe
    api = control_plane.api()
    alone = create(api, namespace, pod, dryRun="All")["spec"]
    later.steps += [
        {"op": "add", "path": "/spec/containers/0", "value": MESH},
        {"op": "add", "path": "/spec/initContainers/0", "value": {**MESH, "name": "mesh-init"}},
        {"op": "add", "path": "/spec/containers/1/env/0", "value": MESH["env"][0]},
    ]
    spec = create(api, namespace, pod, dryRun="All")["spec"]
    assert [one["name"] for one in spec["containers"]] == ["mesh", "c"]
    assert [one["name"] for one in spec["initContainers"]] == ["mesh-init", keys.SIDECAR]
    ours, before = spec["containers"][1], alone["containers"][0]
    assert ours["env"][0] == MESH["env"][0]
    assert ours["env"][1:] == before["env"]
    for field in ("command", "args", "resources", "readinessProbe"):
        assert ours[field] == before[field], field


def test_what_another_undoes_is_done_again(
    control_plane: Cluster, namespace: str, later: Later
) -> None:
    pod, api = seat_pod("undone", annotations=VRAM), control_plane.api()
    pod["spec"]["containers"][0]["readinessProbe"] = {"exec": {"command": ["true"]}}
    wanted = create(api, namespace, pod, dryRun="All")
    later.steps += [
        {"op": "replace", "path": "/spec/schedulerName", "value": "default-scheduler"},
        {"op": "remove", "path": "/spec/readinessGates"},
        {"op": "remove", "path": "/spec/tolerations"},
        {"op": "replace", "path": "/spec/terminationGracePeriodSeconds", "value": 1},
        {"op": "remove", "path": "/spec/containers/0/command"},
        {
            "op": "replace",
            "path": "/spec/containers/0/resources/limits/memory",
            "value": "2Gi",
        },
        {
            "op": "replace",
            "path": "/spec/containers/0/resources/requests/memory",
            "value": "2Gi",
        },
        {
            "op": "replace",
            "path": "/spec/containers/0/readinessProbe/exec/command",
            "value": ["false"],
        },
    ]
    found = create(api, namespace, pod, dryRun="All")
    first, before = found["spec"]["containers"][0], wanted["spec"]["containers"][0]
    for field in ("schedulerName", "readinessGates", "terminationGracePeriodSeconds"):
        assert found["spec"][field] == wanted["spec"][field], field
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in found["spec"]["tolerations"]
    assert first["resources"] == before["resources"]
    assert first["command"] == before["command"]
    # What the other wrote of the workload's own is the workload's own from now on.
    assert first["readinessProbe"]["exec"]["command"][-2:] == ["--", "false"]
