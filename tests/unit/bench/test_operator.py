"""How two runs of the controller are compared: what must show, and what must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bench.operator.ends import Ends, compared, ends, named

UIDS = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")


def run(
    number: int, *, reason: str = "Sealed", pods: int = 1, begun: int = 1, copied: int = 1
) -> Ends:
    """One snapshot of one pod, in a namespace of its own."""
    uid, namespace = UIDS[number], ("calm", "killed")[number]
    request = {
        "metadata": {"name": f"rbal-{uid}"},
        "status": {
            "conditions": [{"type": "Complete", "status": "True", "reason": reason}],
            "artifact": {"name": f"{namespace}/a@20260131T120000Z-00000001"},
        },
    }
    made = [f"{uid[:-1]}{one}" for one in range(pods)]
    done = {"tier": "nvme", "state": "succeeded", "artifact": f"{namespace}/a@{number}"}
    operation = SimpleNamespace(kind="save", uid=uid, **done)
    placed = SimpleNamespace(kind="place", uid="", **done | {"artifact": f"{namespace}/a@1"})
    foreign = SimpleNamespace(kind="save", uid="other", **done)
    elsewhere = SimpleNamespace(kind="place", uid="", **done | {"artifact": "other/a@1"})
    uids: dict[tuple[str, str], Any] = {("pods", "a"): made}
    operations = [*[operation] * begun, *[placed] * copied, foreign, elsewhere]
    things = [("checkpointrequests", request)]
    return ends(things, uids, {"web": [2, 0]}, operations, {uid: "a"}, namespace)


def test_runs_that_came_to_the_same_are_the_same() -> None:
    assert compared(run(0), run(1)) == ((), ())


def test_an_operation_that_was_begun_twice_shows() -> None:
    assert compared(run(0), run(1, begun=2)).twice == (("operation", "save", "a", "nvme"),)


def test_a_copy_that_was_begun_twice_shows() -> None:
    assert compared(run(0), run(1, copied=2)).twice == (("operation", "place", "a@1", "nvme"),)


def test_an_object_that_was_made_twice_under_one_name_shows() -> None:
    found = compared(run(0), run(1, pods=2))
    assert found == ((("pods", "a"),), ())


def test_another_end_shows() -> None:
    found = compared(run(0), run(1, reason="OperationLost"))
    assert [one[2] for one in found.different] == [
        "Complete=True/OperationLost",
        "Complete=True/Sealed",
    ]
    assert found.twice == ()


def test_names_are_those_of_what_they_are_made_of() -> None:
    names = {UIDS[0]: "a", UIDS[1]: "b"}
    assert named(f"rbal-{UIDS[0]}-{UIDS[1]}", names) == "rbal-a-b"
    assert named("shop/p-0123456789-20260131-120000", names) == "p-slot"
    assert named("template-3-abcdef-1", names) == "template-3-1"
    of_move = {**names, UIDS[0]: f"balance-{UIDS[1]}-29931234"}
    assert named(f"rbal-{UIDS[0]}", of_move) == "rbal-balance-b-slot"
