"""What the storm counts: whom the kubelet failed, who is lost, and who was replaced."""

from __future__ import annotations

from typing import Any

import pytest

from bench.cluster.stormpods import Fate, Owner, Unit, by_unit, failed_by_kubelet, units

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
