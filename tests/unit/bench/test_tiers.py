"""The bench of the tiers: what it counts, and that it notices a model that is not what it was."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from bench.saved import tierrig
from bench.saved.tierlimits import Limits, Times, drop_cache, figures
from bench.saved.tierpods import Samples
from tests.kit.clients.models import Answer

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"counter": 1, "device": [1], "checksum": "a", "expected": "a", "boot": "b"}


class Told:
    """A model that answers with these states in turn."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self._states = list(states)

    def to(self, pod: object) -> Told:
        return self

    def ask(self, limit: float) -> Answer:
        return Answer(200, 0.0, 0.0, {"kyb": self._states.pop(0)}, {})


def test_a_model_that_goes_on_is_taken_for_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(GOOD, {**GOOD, "counter": 2, "device": [2]})
    monkeypatch.setattr(tierrig, "Direct", told)
    tierrig.Model(None, {}).see_intact()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "lost", [{"counter": 1}, {"device": [1]}, {"checksum": "c"}, {"boot": "anew"}]
)
def test_a_model_that_lost_something_ends_the_bench(
    monkeypatch: pytest.MonkeyPatch, lost: dict[str, Any]
) -> None:
    told = Told(GOOD, {**GOOD, "counter": 2, "device": [2], **lost})
    monkeypatch.setattr(tierrig, "Direct", told)
    model = tierrig.Model(None, {})  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="not what it was"):
        model.see_intact()


def test_a_ratio_is_of_the_ways_there_and_back_together() -> None:
    found = figures("nvme", 10**9, limit=Times([1.0], [1.0]), ours=Times([3.0], [1.0]))
    assert found["nvme_ratio_limit"] == (0.5, "ratio")
    assert found["nvme_there_gbps"][0] == pytest.approx(1 / 3)
    assert found["nvme_back_limit_gbps"][0] == 1.0


def test_what_no_step_accounts_for_is_told() -> None:
    samples = Samples()
    samples.note("back", 3.0, {("restore", "read"): 0.5, ("restore", "all"): 1.0})
    assert samples.phases["back, rest all"] == [2.0]


def test_a_limit_is_copied_there_and_back_and_leaves_nothing(tmp_path: Path) -> None:
    limits, times = Limits(tmp_path, mib=1), Times()
    limits.copied(tmp_path / "plain", times, cold=True)
    assert times.there[0] > 0
    assert times.back[0] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["image"]


def test_what_an_agent_removes_meanwhile_does_not_end_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "nvme"
    for name in ("a/images", "b/images", "c/images"):
        (place / name).mkdir(parents=True)
        (place / name / "pages-1.img").write_bytes(b"x")
    seen = []

    def synced(descriptor: int) -> None:
        seen.append(descriptor)
        shutil.rmtree(place)

    monkeypatch.setattr("os.fsync", synced)
    drop_cache(place)
    assert len(seen) == 1
