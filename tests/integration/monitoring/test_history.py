"""`kybernate plan --prometheus`, of a real Prometheus with a day of GPUs as dcgm-exporter has."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kybernate import keys
from kybernate.cli import main
from tests.cluster.parts import accounts, pki
from tests.cluster.start import readiness
from tests.kit.pods import take_away
from tests.kit.servers import prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

MEMORY, WORK = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL"
STEP_S = 30
BUSY = {"chat": 6, "batch": 18}
"""Each pod works for the first half of an hour, so many hours ago."""
GIB = 1024
PODS = {"chat": (2, 30 * GIB), "batch": (1, 60 * GIB)}
"""GPUs, and MiB on each."""


def lines(now: float, behind: str) -> Iterator[str]:
    """A day as OpenMetrics. `behind`: what a scraper with labels of its own puts before ours."""
    own = 'namespace="gpu-operator",pod="dcgm-exporter-x",' if behind else ""
    starts = now - now % 3600
    times = range(int(now) - 86_400, int(now) + 1, STEP_S)
    for what in (MEMORY, WORK):
        yield f"# TYPE {what} gauge"
        for pod, (gpus, mib) in PODS.items():
            begins = starts - BUSY[pod] * 3600
            for number in range(gpus):
                of = f'{own}{behind}namespace="team",{behind}pod="{pod}",UUID="GPU-{pod}-{number}"'
                for at in times:
                    works = begins < at <= begins + 1800
                    value = mib if what == MEMORY else 50 * works if not number else 0
                    yield f"{what}{{{of}}} {value} {at}"
        labels = f'{own}UUID="GPU-idle"' if behind else 'UUID="GPU-idle"'
        mig = f'{own}{behind}namespace="team",{behind}pod="mig",UUID="GPU-m",GPU_I_ID="1"'
        for of in (labels, mig):
            yield from (f"{what}{{{of}}} 1 {at}" for at in times)
    yield "# EOF"


@pytest.fixture(scope="module")
def now() -> float:
    """When the day ends, in seconds since 1970: of a sample that is older nobody is told."""
    return time.time()


@pytest.fixture(scope="module", params=["", "exported_"], ids=["plain", "exported"])
def url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, now: float
) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    (folder / "day").write_text("\n".join(lines(now, request.param)) + "\n")
    promtool = str(prometheus.ensure() / "promtool")
    words = ["tsdb", "create-blocks-from", "openmetrics", f"{folder}/day", f"{folder}/data"]
    subprocess.run([promtool, *words], check=True, capture_output=True, timeout=120)
    with prometheus.server(folder, {}) as server:
        yield server.url


def plan(*words: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, words)])


def test_a_day_of_gpus_becomes_a_plan_and_a_file_that_comes_to_the_same(
    url: str, now: float, tmp_path: Path
) -> None:
    file = tmp_path / "workloads.csv"
    found = plan("--prometheus", url, "--p99", "30", "--write", file, "-o", "json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.output)
    assert (told["gpus_today"], sum(len(one["workloads"]) for one in told["places"])) == (3, 2)
    again = json.loads(plan(file, "-o", "json").output)
    assert (again["gpus"], again["gpus_today"]) == (told["gpus"], told["gpus_today"])
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    for name, namespace, gpus, gib, rates, p99, seconds in rows:
        assert (namespace, int(gpus), float(gib) * GIB) == ("team", *PODS[name])
        assert float(p99) == 30
        assert float(seconds) == pytest.approx(30, abs=1.5)
        hour = int((now - BUSY[name] * 3600) // 3600) % 24
        by_hour = [float(rate) for rate in rates.split()]
        assert by_hour[hour] == pytest.approx(30, abs=2)
        assert sum(by_hour) == pytest.approx(30, abs=2)


TEAM = "/api/v1/namespaces/team"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MADE = (
    ("/apis/apps/v1", "Deployment", "chat", None),
    ("/apis/apps/v1", "ReplicaSet", "chat-1", "chat"),
    ("/apis/apps/v1", "StatefulSet", "idle", None),
    ("/apis/batch/v1", "Job", "nightly", None),
)
OF = {"chat": "chat-1", "chat-2": "chat-1", "idle-0": "idle", "batch": "nightly", "web": None}
"""Pods, two of which have a history, and who made them."""
GPUS = {"chat": 2, "chat-2": 2, "idle-0": 4, "batch": 1, "web": 0}


def container(gpus: int) -> dict[str, Any]:
    limits = {keys.VENDOR_RESOURCE: str(gpus)} if gpus else {}
    return {"name": "c", "image": "x", "resources": {"limits": limits}}


@pytest.fixture(scope="module")
def reader(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of an account that may list what a plan reads, and do nothing else; and
    workloads of all kinds."""
    api = control_plane.api()
    # A plan is of all pods that it finds.
    take_away(api, "/api/v1/pods")
    api.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    for name in ("default", "reader"):
        api.post(f"{TEAM}/serviceaccounts", {"metadata": {"name": name}})
    uids: dict[str | None, list[dict[str, Any]]] = {None: []}
    for group, kind, name, owner in MADE:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container(0)]}}
        spec: dict[str, Any] = {"template": template, "selector": {"matchLabels": labels}}
        if kind == "Job":
            template["spec"]["restartPolicy"] = "Never"
            spec = {"template": template}
        meta = {"name": name, "ownerReferences": uids[owner]}
        path = f"{group}/namespaces/team/{kind.lower()}s"
        made = api.post(path, {"metadata": meta, "spec": spec})
        uids[name] = [
            {"apiVersion": group.removeprefix("/apis/"), "kind": kind, "name": name}
            | {"uid": made["metadata"]["uid"], "controller": True}
        ]
    for name, gpus in GPUS.items():
        meta = {"name": name, "ownerReferences": uids[OF[name]]}
        api.post(f"{TEAM}/pods", {"metadata": meta, "spec": {"containers": [container(gpus)]}})
    rules = [
        {"apiGroups": [group], "resources": [what], "verbs": ["list"]}
        for group, what in (("", "pods"), ("apps", "replicasets"), ("batch", "jobs"))
    ]
    api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "plans"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": "team"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "plans"}
    binding = {"metadata": {"name": "plans"}, "subjects": [subject], "roleRef": role}
    api.post(f"{RBAC}/clusterrolebindings", binding)
    readiness.rights(api, "system:serviceaccount:team:reader", rules)
    asked = {"spec": {"expirationSeconds": 3600}}
    token = api.post(f"{TEAM}/serviceaccounts/reader/token", asked)["status"]["token"]
    file = tmp_path_factory.mktemp("reader") / "reader.conf"
    authority = control_plane.layout.pki / "ca.crt"
    text = pki.kubeconfig(control_plane.server, authority, {"token": token})
    accounts.write_secret(file, text)
    yield file
    for path in (f"{RBAC}/clusterrolebindings/plans", f"{RBAC}/clusterroles/plans"):
        api.delete(path)
    for name in GPUS:
        api.delete(f"{TEAM}/pods/{name}", {"gracePeriodSeconds": 0})
    for group, kind, name, _ in MADE:
        api.delete(f"{group}/namespaces/team/{kind.lower()}s/{name}")


def test_pods_are_named_by_their_workload_and_those_without_history_are_told(
    url: str, reader: Path, tmp_path: Path
) -> None:
    file, drawn = tmp_path / "workloads.csv", tmp_path / "plan.svg"
    words = ("--prometheus", url, "--cluster", "--kubeconfig", reader, "--p99", "30")
    found = plan(*words, "--write", file, "--picture", drawn)
    assert found.exit_code == 0, found.output
    assert "2 workloads on 3 GPUs" in found.output
    assert "No history, not planned: team/Deployment/chat, 1 pod on 2 GPUs." in found.output
    assert "No history, not planned: team/StatefulSet/idle, 1 pod on 4 GPUs." in found.output
    assert "team/chat (1 of 2)" in found.output
    assert "team/nightly" in found.output
    assert "team/batch" not in found.output
    assert "web" not in found.output
    assert "team/StatefulSet/idle" in drawn.read_text()
    told = json.loads(plan(*words, "-o", "json").output)
    there = {(one["workload"], one["owner"]) for p in told["places"] for one in p["workloads"]}
    assert there == {("chat (1 of 2)", "Deployment/chat"), ("nightly", "Job/nightly")}
    assert {(one["owner"], one["why"]) for one in told["not_planned"]} == {
        ("Deployment/chat", "no history"),
        ("StatefulSet/idle", "no history"),
    }
    again = json.loads(plan(file, "-o", "json").output)
    assert again["sentence"] == told["sentence"]


def test_what_is_no_history_is_told(tmp_path: Path) -> None:
    with prometheus.server(tmp_path, {}) as empty:
        assert "have it scrape NVIDIA's dcgm-exporter" in plan("--prometheus", empty.url).output
    assert "doesn't answer" in plan("--prometheus", "http://127.0.0.1:9").output
    assert "write http://HOST:PORT" in plan("--prometheus", "prometheus").output
    assert "one of them" in plan().output
    assert "goes with --prometheus" in plan("config/samples/workloads.csv", "--cluster").output
