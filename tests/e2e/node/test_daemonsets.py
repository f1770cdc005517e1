"""Agent and plugin as pods: the rights that they really have, and that these are enough."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster.parts.manifests import DAEMON_SETS
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

CAPABILITIES = {"KILL": 5, "DAC_OVERRIDE": 1, "NET_ADMIN": 12, "SYS_PTRACE": 19, "SYS_ADMIN": 21}
NOBODY = {
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""As Pod Security `restricted` wants it."""


def capabilities(pid: int) -> set[int]:
    """The capabilities that the process may ever have."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("CapBnd")]
    return {bit for bit in range(64) if mask >> bit & 1}


def test_they_have_the_rights_that_config_gives_and_no_others(cluster: Cluster) -> None:
    node = cluster.node("n1")
    assert capabilities(node.agent.pid) == set(CAPABILITIES.values())
    assert capabilities(node.plugin.pid) == set()
    for service in (node.agent, node.plugin):
        lines = Path(f"/proc/{service.pid}/status").read_text().splitlines()
        assert "NoNewPrivs:\t1" in lines
        assert "Seccomp:\t2" in lines


@pytest.mark.parametrize("service", sorted(DAEMON_SETS))
def test_there_is_no_shell_and_nothing_can_be_written(cluster: Cluster, service: str) -> None:
    command = ("-n", keys.NAMESPACE, "exec", f"ds/{DAEMON_SETS[service]}", "--")
    for shell in ("sh", "bash", "busybox"):
        with pytest.raises(KybernateError, match="executable file not found"):
            cluster.kubectl(*command, shell)
    write = "open('/usr/lib/kybernate/x', 'w')"
    with pytest.raises(KybernateError, match="Read-only file system"):
        cluster.kubectl(*command, "python3", "-c", write)


def test_an_operator_can_ask_the_agent_in_its_pod(cluster: Cluster) -> None:
    ask = ("python3", "-m", "kybernate.cli", "agent", "status")
    said = cluster.kubectl("-n", keys.NAMESPACE, "exec", "ds/kyb-agent", "--", *ask)
    assert "GPU" in said


def test_seats_of_another_user_are_parked_and_woken_and_deleted(pods: Pods, models: Models) -> None:
    names = ("plain", "other")
    for name in names:
        pods.create(
            SeatPod(
                name,
                node="n1",
                annotations={keys.REQUIRE_GROUP: "G0"},
                more={"securityContext": NOBODY},
            )
        )
    pods.wait(names, ready, 60, "Ready")
    first = {name: models.ask(name).counter for name in names}
    for round_ in range(1, 4):
        for name in names:
            answer = models.ask(name)
            assert answer.status == 200
            assert answer.intact
            assert answer.counter == first[name] + round_
    pods.delete(["plain"], grace=30)
    assert pods.gone(["plain"], 20) < 10
    assert models.ask("other").intact
