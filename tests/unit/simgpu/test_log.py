"""Reading the driver's log: who held what, and whether two did at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.simgpu import Event, Record, holdings, read_log, violations

if TYPE_CHECKING:
    from pathlib import Path

GPU = "GPU-a"


def record(
    at: int, event: Event, pod: str, moved: int = 0, held: int = 0, *, pid: int = 1, gpu: str = GPU
) -> Record:
    return Record(at, event, gpu, pod, pid, 7, moved, held, "test")


def turn(at: int, pod: str, *, gpu: str = GPU) -> list[Record]:
    """A pod comes, holds ten bytes and leaves."""
    return [
        record(at, Event.OPEN, pod, gpu=gpu),
        record(at + 1, Event.ACQUIRE, pod, 10, 10, gpu=gpu),
        record(at + 2, Event.RELEASE, pod, 10, 0, gpu=gpu),
        record(at + 3, Event.CLOSE, pod, gpu=gpu),
    ]


def test_one_after_the_other_is_fine() -> None:
    assert violations([*turn(0, "a"), *turn(10, "b"), *turn(20, "a")], contexts=True) == []


def test_overlap_is_found_with_its_holders() -> None:
    records = [*turn(0, "a")[:2], *turn(10, "b")]
    (found,) = violations(records)
    assert (found.gpu, found.at_ns, found.holders) == (GPU, 11, {"a": 10, "b": 10})


def test_different_gpus_do_not_overlap() -> None:
    assert violations([*turn(0, "a")[:2], *turn(1, "b", gpu="GPU-b")[:2]], contexts=True) == []


def test_open_contexts_count_only_when_asked_for() -> None:
    records = [record(0, Event.OPEN, "a"), record(1, Event.OPEN, "b")]
    assert violations(records) == []
    assert len(violations(records, contexts=True)) == 1


def test_processes_of_one_pod_may_share() -> None:
    records = [
        record(0, Event.ACQUIRE, "a", 5, 5, pid=1),
        record(1, Event.ACQUIRE, "a", 6, 6, pid=2),
    ]
    assert violations(records) == []
    assert holdings(records) == {GPU: {"a": 11}}


def test_processes_outside_pods_are_told_apart() -> None:
    records = [
        record(0, Event.ACQUIRE, "", 5, 5, pid=1),
        record(1, Event.ACQUIRE, "", 6, 6, pid=2),
    ]
    assert len(violations(records)) == 1


def test_what_the_dead_held_is_reclaimed() -> None:
    records = [*turn(0, "a")[:2], record(5, Event.RECLAIM, "a", 10), *turn(6, "b")]
    assert violations(records, contexts=True) == []


def test_holdings_at_a_time() -> None:
    records = [*turn(0, "a"), *turn(10, "b")]
    assert holdings(records, 1) == {GPU: {"a": 10}}
    assert holdings(records, 5) == {GPU: {}}
    assert holdings(records, 11) == {GPU: {"b": 10}}


def test_a_line_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    line = (
        '{"t":1,"event":"open","gpu":"GPU-a","pod":"","pid":4,"pidns":5,"bytes":0,"held":0,'
        '"why":"context"}'
    )
    (tmp_path / "log").write_text(f"{line}\n{line[:20]}")
    (only,) = read_log(tmp_path)
    assert (only.at_ns, only.event, only.pid, only.why) == (1, Event.OPEN, 4, "context")


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_turns_in_any_order_never_overlap(pods: list[str]) -> None:
    records = [entry for at, pod in enumerate(pods) for entry in turn(at * 10, pod)]
    assert violations(records, contexts=True) == []
    assert all(not holders for holders in holdings(records).values())
