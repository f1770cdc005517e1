"""What the storm counts: whom the kubelet failed, who is lost, and who was replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.stormpods import Fate, Owner, Unit, by_unit, failed_by_kubelet, units
from bench.processes import REPOSITORY, hogs

SEAT = "kyb.ai/gpu-1x-seat"
READY = {
    "phase": "Running",
    "startTime": "2026-01-02T03:04:05Z",
    "conditions": [{"type": "Ready", "status": "True"}],
}
STARTING = {"phase": "Pending", "startTime": "2026-01-02T03:04:05Z"}
BOUND = {"phase": "Pending"}
REFUSED = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "startTime": "2026-01-02T03:04:05Z",
    "message": "Allocate failed due to no healthy devices present; cannot allocate unhealthy "
    f"devices {SEAT}, which is unexpected",
}
COMPLETED = {
    "phase": "Succeeded",
    "startTime": "2026-01-02T03:04:05Z",
    "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted"}],
}
TOLD = {"type": "kyb.ai/replace", "status": "True", "reason": "SeatsNotThere"}
"""The agent saw it refused; its container, which ran meanwhile, then exited with 0."""
REFUSED_THEN_COMPLETED = COMPLETED | {"conditions": [TOLD]}
EVICTED = {"phase": "Failed", "reason": "Evicted", "startTime": "2026-01-02T03:04:05Z"}
OTHER = REFUSED | {"message": "Allocate failed due to no healthy devices present: example.com/nic"}


def pod(status: dict[str, Any]) -> dict[str, Any]:
    container = {"name": "server", "resources": {"limits": {SEAT: "1"}}}
    return {"metadata": {"labels": {"storm": "s1"}}, "spec": {"containers": [container]}} | {
        "status": status
    }


BARE, OWNED = (Owner.NOBODY,), (Owner.REPLICA_SET, Owner.JOB)


@pytest.mark.parametrize(
    ("owners", "found", "fate"),
    [
        ((*BARE, *OWNED), [], Fate.PENDING),
        ((*BARE, *OWNED), [BOUND], Fate.PENDING),
        ((*BARE, *OWNED), [STARTING], Fate.PENDING),
        ((*BARE, *OWNED), [READY], Fate.READY),
        (BARE, [REFUSED], Fate.FAILED_BY_KUBELET),
        (BARE, [REFUSED_THEN_COMPLETED], Fate.FAILED_BY_KUBELET),
        (BARE, [COMPLETED], Fate.FAILED),
        (OWNED, [REFUSED_THEN_COMPLETED], Fate.PENDING),
        (BARE, [EVICTED], Fate.FAILED),
        (BARE, [OTHER], Fate.FAILED),
        # Whoever owns a pod makes another one: only that it never comes is a loss.
        (OWNED, [REFUSED], Fate.PENDING),
        (OWNED, [EVICTED], Fate.PENDING),
        (OWNED, [REFUSED, STARTING], Fate.PENDING),
        (OWNED, [REFUSED, READY], Fate.READY),
        (OWNED, [READY | {"phase": "Failed"}], Fate.PENDING),
    ],
)
def test_what_has_become_of_a_unit(
    owners: tuple[Owner, ...], found: list[dict[str, Any]], fate: Fate
) -> None:
    for owner in owners:
        assert Unit("s1", owner, 1).fate(map(pod, found)) is fate, owner


@pytest.mark.parametrize(
    ("owner", "found", "admitted"),
    [
        (Owner.NOBODY, [BOUND], False),
        (Owner.NOBODY, [STARTING], True),
        (Owner.NOBODY, [REFUSED], True),
        (Owner.JOB, [REFUSED], False),
        (Owner.JOB, [REFUSED, STARTING], True),
        (Owner.REPLICA_SET, [REFUSED, BOUND], False),
    ],
)
def test_a_restart_waits_for_whoever_is_between_bind_and_admission(
    owner: Owner, found: list[dict[str, Any]], *, admitted: bool
) -> None:
    assert Unit("s1", owner, 1).is_admitted(map(pod, found)) is admitted


def test_only_the_kubelets_refusal_of_a_seat_is_the_kubelets() -> None:
    assert [failed_by_kubelet(pod(one)) for one in (REFUSED, OTHER, EVICTED, READY)] == [
        *(True, False, False, False)
    ]
    assert [failed_by_kubelet(pod(one)) for one in (REFUSED_THEN_COMPLETED, COMPLETED)] == [
        *(True, False)
    ]


def test_each_owner_has_pods_of_all_sizes() -> None:
    made = units(range(60), (1,) * 7 + (2,) * 2 + (4,))
    assert len({unit.name for unit in made}) == 60
    for owner in Owner:
        mine = [unit.gpus for unit in made if unit.owner is owner]
        assert (len(mine), set(mine)) == (20, {1, 2, 4})


def test_an_owners_pods_carry_the_units_name_and_ask_for_its_seat() -> None:
    bare, owned, job = (Unit("s7", owner, 2).manifest() for owner in Owner)
    for template in (bare, owned["spec"]["template"], job["spec"]["template"]):
        labels, (container,) = template["metadata"]["labels"], template["spec"]["containers"]
        assert labels["storm"] == "s7"
        assert container["resources"]["limits"]["kyb.ai/gpu-2x-seat"] == "1"
    assert owned["spec"]["selector"]["matchLabels"].items() <= labels.items()
    # Kubernetes would make the next pod while the last one still holds the seat.
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert (bare["kind"], owned["kind"], job["kind"]) == ("Pod", "ReplicaSet", "Job")
    assert by_unit([pod(READY), {"metadata": {}}]) == {"s1": [pod(READY)]}


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_hogs_compute_beside_it_and_end_with_it() -> None:
    before = set(children(os.getpid()))
    with hogs(2):
        made = set(children(os.getpid())) - before
        assert len(made) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in made)


def test_hogs_outlive_no_bench_that_is_killed() -> None:
    script = "import time\nfrom bench.processes import hogs\nwith hogs(1):\n    time.sleep(60)"
    bench = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY)
    until = time.monotonic() + 60
    while not (made := children(bench.pid)):
        assert time.monotonic() < until
        time.sleep(0.05)
    bench.kill()
    bench.wait()
    while any(alive(pid) for pid in made):
        assert time.monotonic() < until
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
