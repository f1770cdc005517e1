"""Pods of servers that nobody here wrote hold seats: nginx, Redis, llama.cpp; parked and woken."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.fetched import images as cluster_images
from tests.cluster.fetched import llama, servers
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.conftest import emptied
from tests.e2e.node.test_daemonsets import NOBODY
from tests.e2e.tiers.test_tiers import agent, seat_of
from tests.kit import belowram
from tests.kit.clients.served import REDIS, Served, said
from tests.kit.pods import SeatPod, ready
from tests.kit.servers import s3

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

TIERS = {"ram": "parked in RAM", "nvme": "parked on NVMe", "object": "object store"}
"""Each with words of what `kyb-init status` then says."""

NGINX = 8080
RIGHTS = (
    "Uid",
    "Gid",
    "Groups",
    "Cap",
    "NoNewPrivs",
    "Seccomp:",
    "Cpus_allowed_list",
    "oom",
    "Max",
)
OPTIONS = ("--save", "", "--protected-mode", "no", "--enable-debug-command", "yes")
PROMPT = {
    "prompt": "a seat waits until its model wakes with all it knew",
    "n_predict": 16,
    "temperature": 0,
    "cache_prompt": True,
}


def spec(overlay: Path) -> ClusterSpec:
    """One node, whose agent is the pod that the overlay makes."""
    return ClusterSpec(
        name="real",
        nodes=("n1",),
        subnet="10.93.0.0/16",
        gpus=GpuSpec(count=1),
        images=("servers", "llama", "sidecar"),
        node_pods=True,
        overlay=overlay,
        service_env={"agent": {"KYB_AGENT_TIER_RESIDENCY_S": "0"}},
    )


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own, whose object store is a real S3 server."""
    if why_not := s3.why_not():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("real")
    with contextlib.ExitStack() as stack:
        try:
            cluster_images.build(("servers", "llama"), print)
            store = stack.enter_context(s3.server(folder / "s3", print))
            where = {"KYB_AGENT_OBJECT_STORE": store.url, **store.environment}
            found = belowram.made(folder / "below", where, print)
        except KybernateError as error:
            pytest.skip(f"needs CRIU, an S3 server and Debian's packages: {error}")
        yield stack.enter_context(running(spec(found.overlay), print))


@pytest.fixture
def seats(real: Cluster) -> Iterator[Pods]:
    with emptied(real) as found:
        yield found


def started(
    seats: Pods, name: str, image: str, port: int, *arguments: str, **own: object
) -> dict[str, Any]:
    """A pod with a seat, whose container runs these arguments of the image."""
    more = {"image": image, "args": list(arguments), "ports": [{"containerPort": port}], **own}
    notes = {keys.CONNECTIONS: "keep"}
    seats.create(SeatPod(name, vram="1Gi", annotations=notes, more=more))
    return seats.wait([name], ready, 60, "Ready")[name]


def park(cluster: Cluster, name: str, tier: str) -> None:
    """It is parked in the tier, and says so to who looks into its container."""
    done = agent(cluster, "park", name, "--tier", tier)
    assert done["state"] == "succeeded", done
    wait_until(lambda: seat_of(cluster, name).get("tier") == tier, 60, f"not shown in {tier}")
    status = cluster.kubectl("exec", name, "-c", "server", "--", "/kyb/kyb-init", "status")
    assert status.startswith("parked")
    assert TIERS[tier] in status


def processes(cluster: Cluster, name: str) -> set[str]:
    """PID and command of the server's processes, as its container has them."""
    text = cluster.kubectl(
        *("exec", name, "-c", "server", "--", "/bin/busybox", "ps", "-o", "pid,args")
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return {line for line in lines if f" {name}" in line}


def rights(pod: dict[str, Any]) -> set[str]:
    """What the kernel says that each process of its container may do, but for process 1."""
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if container not in (process / "cgroup").read_text():
                continue
            lines = (process / "status").read_text().splitlines()
            lines += [f"oom {(process / 'oom_score_adj').read_text()}"]
            lines += (process / "limits").read_text().splitlines()
        except OSError:
            continue
        (number,) = [line.split()[-1] for line in lines if line.startswith("NSpid")]
        if number != "1":
            found |= {f"{number} {line}" for line in lines if line.startswith(RIGHTS)}
    return found


def unharmed(seats: Pods, before: dict[str, Any]) -> None:
    """The pod is the one that it was: address and containers."""
    after = seats.get(before["metadata"]["name"])
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]


def test_nginx_serves_on_with_the_same_processes_and_its_log_goes_on(
    real: Cluster, seats: Pods
) -> None:
    pod = started(seats, "nginx", servers.NAME, NGINX, "nginx", "-c", "/etc/nginx.conf")
    served = Served.by(pod)

    def answers() -> bool:
        return served.http("/first", NGINX).ok

    wait_until(answers, 20, "nginx doesn't serve")
    before = processes(real, "nginx")
    assert sum("worker process" in one for one in before) == 2
    for tier in TIERS:
        said_before = seats.log("nginx")
        park(real, "nginx", tier)
        assert "nginx is here" in served.http(f"/{tier}", NGINX).text
        assert processes(real, "nginx") == before
        assert seats.log("nginx").startswith(said_before)
        wait_until(lambda t=tier: f"GET /{t} " in seats.log("nginx"), 10, "the log ended")
    unharmed(seats, pod)


def test_redis_keeps_every_key_and_its_client(real: Cluster, seats: Pods) -> None:
    pod = started(seats, "redis", servers.NAME, REDIS, "redis-server", *OPTIONS)
    served = Served.by(pod)
    wait_until(lambda: b"PONG" in served.redis("PING"), 20, "redis doesn't serve")
    assert served.redis("DEBUG", "POPULATE", "50000", "key", "500") == b"+OK\r\n"
    with served.connect(REDIS) as client:
        assert said(client, "SET", "here", "since before") == b"+OK\r\n"
        number = said(client, "CLIENT", "ID")
        digest = said(client, "DEBUG", "DIGEST")
        assert re.fullmatch(rb"\+[0-9a-f]{40}\r\n", digest)
        for tier in TIERS:
            park(real, "redis", tier)
            assert b"since before" in said(client, "GET", "here")
            assert said(client, "CLIENT", "ID") == number
            assert said(client, "DEBUG", "DIGEST") == digest
            assert served.redis("DBSIZE") == b":50001\r\n"
    unharmed(seats, pod)


@pytest.mark.parametrize("confined", [False, True])
def test_another_agent_brings_it_back_with_the_rights_that_it_had(
    real: Cluster, seats: Pods, confined: bool
) -> None:
    own = {"securityContext": NOBODY} if confined else {}
    pod = started(seats, "redis", servers.NAME, REDIS, "redis-server", *OPTIONS, **own)
    served = Served.by(pod)
    wait_until(lambda: b"PONG" in served.redis("PING"), 20, "redis doesn't serve")
    assert served.redis("SET", "here", "since before") == b"+OK\r\n"
    before = rights(pod)
    assert any(f"NoNewPrivs:\t{confined:d}" in line for line in before)
    park(real, "redis", "nvme")
    assert not rights(pod)
    real.node("n1").agent.restart()
    assert b"since before" in served.redis("GET", "here")
    assert rights(pod) ^ before == set()
    unharmed(seats, pod)
    park(real, "redis", "object")
    seats.delete(["redis"])
    assert seats.gone(["redis"], 20) < 5


def test_llama_answers_the_same_without_reading_the_prompt_anew(real: Cluster, seats: Pods) -> None:
    pod = started(seats, "llama", llama.NAME, llama.PORT)
    served = Served.by(pod)

    def answers() -> bool:
        try:
            return served.http("/health", llama.PORT).ok
        except OSError:
            return False

    wait_until(answers, 60, "llama.cpp doesn't serve")
    first = served.http("/completion", llama.PORT, PROMPT).json()
    assert first["timings"]["cache_n"] == 0
    for tier in TIERS:
        park(real, "llama", tier)
        again = served.http("/completion", llama.PORT, PROMPT).json()
        assert again["content"] == first["content"]
        assert again["timings"]["cache_n"] == first["timings"]["prompt_n"] - 1
    unharmed(seats, pod)
