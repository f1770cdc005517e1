"""`kubectl kyb support-bundle` on a real API server: what is in the file, that no planted secret is
there, and what somebody with fewer rights gets. A kubelet of the test's own serves the logs, and a
controller its metrics."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError, NotFoundError
from tests.integration.controller.conftest import NAMESPACE, NODE, Controller, request
from tests.integration.hooks import until
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

SECRET = "hunter2hunter2"
PLANTED = f"2026-01-01T00:00:00Z parked in 3 s; password={SECRET} Bearer {SECRET}\n"
NODES = "/api/v1/nodes"
SYSTEM = "/api/v1/namespaces/kyb-system"


class Kubelet(BaseHTTPRequestHandler):
    """Serves logs of any container."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PLANTED.encode())

    def log_message(self, *_: object) -> None:
        pass


def own_address() -> str:
    """An address that the API server lets itself be led to: none of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.254", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
        return str(one.getsockname()[0])


@pytest.fixture
def kubelet(control_plane: Cluster) -> Iterator[tuple[int, list[str]]]:
    Kubelet.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pki = control_plane.layout.pki
    context.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, Kubelet.asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def planted(
    control_plane: Cluster, controller: Controller, kubelet: tuple[int, list[str]], seated: Any
) -> Iterator[None]:
    """A pod of the system with logs and metrics, and secrets wherever tenants may have them."""
    api = control_plane.api()
    node = {"metadata": {"name": NODE}}
    with contextlib.suppress(ConflictError):
        api.post(NODES, node)
    port = {"kubeletEndpoint": {"Port": kubelet[0]}}
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    api.patch(
        f"{NODES}/{NODE}/status", {"status": {"addresses": addresses, "daemonEndpoints": port}}
    )
    ports = [{"name": "probes", "containerPort": control_plane.ports.controller}]
    env = [{"name": "PASS", "value": SECRET}]
    container = {"name": "controller", "image": "x", "ports": ports, "env": env, "args": [SECRET]}
    meta = {"name": "kyb-controller-0", "annotations": {"others.example/x": SECRET}}
    spec = {"nodeName": NODE, "containers": [container], "automountServiceAccountToken": False}
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": keys.NAMESPACE}}),
        (f"{SYSTEM}/serviceaccounts", {"metadata": {"name": "default"}}),
        (f"{SYSTEM}/secrets", {"metadata": {"name": "planted"}, "stringData": {"x": SECRET}}),
        (f"{SYSTEM}/pods", {"metadata": meta, "spec": spec}),
    ):
        with contextlib.suppress(ConflictError):
            api.post(path, body)
    address = own_address()
    state = {"name": "controller", "image": "x", "imageID": "x", "restartCount": 1, "ready": True}
    status = {"podIP": address, "podIPs": [{"ip": address}], "containerStatuses": [state]}
    api.patch(f"{SYSTEM}/pods/kyb-controller-0/status", {"status": {**status, "phase": "Running"}})
    seated()
    api.patch(
        f"/api/v1/namespaces/{NAMESPACE}/pods/a",
        {"metadata": {"annotations": {"others.example/x": SECRET}}},
    )
    with contextlib.suppress(ConflictError):
        api.post(
            f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/checkpointrequests", request("bundle")
        )
    yield
    for path in (f"{SYSTEM}/pods/kyb-controller-0", f"{NODES}/{NODE}", f"{SYSTEM}/secrets/planted"):
        with contextlib.suppress(NotFoundError):
            api.delete(path, {"gracePeriodSeconds": 0} if "/pods/" in path else None)


@pytest.fixture
def controller(
    control_plane: Cluster, tmp_path: Path, namespace: str, webhook: object, door: object
) -> Iterator[Controller]:
    """One whose metrics the API server can reach."""
    port = control_plane.ports.controller
    made = Controller(control_plane, tmp_path, port, probe_listen=f"0.0.0.0:{port}")
    yield made.start()
    made.kill()


@pytest.fixture
def kubectl(control_plane: Cluster, tmp_path: Path) -> Kubectl:
    return Kubectl(control_plane.kubectl_path, tmp_path, control_plane.kubeconfig)


def opened(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        files = {one.name.partition("/")[2]: tar.extractfile(one) for one in tar.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


@pytest.mark.usefixtures("planted")
def test_all_that_a_cluster_tells_is_in_one_file_and_no_secret(
    kubectl: Kubectl, tmp_path: Path, kubelet: tuple[int, list[str]]
) -> None:
    """As docs/how-to/operate/support-bundle.md has it."""
    path = tmp_path / "bundle.tar.gz"
    would = kubectl("kyb", "support-bundle", "--dry-run", "-o", "json")
    found = kubectl("kyb", "support-bundle", "-f", str(path), "-o", "json", "--since", "1h")
    assert found.returncode == 0, found.stderr
    told = {one["file"]: one for one in json.loads(found.stdout)}
    assert {one["file"] for one in json.loads(would.stdout)} == set(told)
    assert {one["may"] for one in json.loads(would.stdout)} == {"yes"}
    assert [one for one in told.values() if one["why"]] == [], "an administrator gets everything"
    files = opened(path)
    assert [name for name, body in files.items() if SECRET.encode() in body] == []
    assert b"parked in 3 s" in files["logs/kyb-controller-0/controller.log"]
    assert b"parked in 3 s" in files["logs/kyb-controller-0/controller.previous.log"]
    assert any("sinceSeconds=3600" in asked for asked in kubelet[1])
    assert b"kyb_controller_leading 1.0" in files["metrics/kyb-controller-0.txt"]
    assert files["readyz/kyb-controller-0.txt"]
    assert [one["metadata"]["name"] for one in json.loads(files["objects/gpunodes.json"])] == [NODE]
    asked = json.loads(files["objects/checkpointrequests.json"])
    assert "bundle" in [one["metadata"]["name"] for one in asked]
    (pod,) = json.loads(files["pods.json"])
    assert pod["metadata"]["name"] == "a"
    assert {one["check"] for one in json.loads(files["doctor.json"])} >= {"objects", "nodes"}
    assert json.loads(files["versions.json"])["server"]["gitVersion"].startswith("v1.")
    assert json.loads(files["system/definitions.json"])
    assert json.loads(files["manifest.json"])["problems"] == []
    with Page("support-bundle", kubectl) as page:
        bundle = "kubectl kyb support-bundle --since 2h"
        assert "logs/kyb-controller-0/controller.log" in page("kubectl kyb support-bundle --dry")
        page(f"{bundle}\n")
        page(f"{bundle} -n shop -f shop.tar.gz")
        assert "/pods.json" in page("tar -tzf shop.tar.gz")
    assert len(list(tmp_path.glob("*.tar.gz"))) == 3


@pytest.mark.usefixtures("planted")
def test_who_may_see_one_namespace_gets_that(
    kubectl: Kubectl, tmp_path: Path, users: Callable[..., Api]
) -> None:
    rules = [
        {"apiGroups": [keys.GROUP], "resources": ["checkpointrequests"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    users("sees-little", rules)
    mine = ("-n", NAMESPACE, "--kubeconfig", str(tmp_path / "sees-little.conf"), "-o", "json")

    def may() -> bool:
        would = kubectl("kyb", "support-bundle", "--dry-run", *mine)
        told = {one["file"]: one["may"] for one in json.loads(would.stdout)}
        return (told["pods.json"], told["objects/gpunodes.json"]) == ("yes", "no")

    until(may, "the API server doesn't know the role", 30.0)
    path = tmp_path / "little.tar.gz"
    found = kubectl("kyb", "support-bundle", *mine, "-f", str(path))
    assert found.returncode == 0, found.stderr
    assert "logs and metrics" in found.stderr
    told = {one["file"]: one for one in json.loads(found.stdout)}
    assert "cannot list resource" in told["objects/gpunodes.json"]["why"]
    files = opened(path)
    assert [one["metadata"]["name"] for one in json.loads(files["pods.json"])] == ["a"]
    assert json.loads(files["objects/checkpointrequests.json"])
    assert "logs and metrics" in json.loads(files["manifest.json"])["problems"][0]
