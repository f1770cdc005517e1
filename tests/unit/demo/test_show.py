"""Which GPUs the demo's screen shows."""

from __future__ import annotations

import pytest

from kybernate.errors import DeadlineError
from tests.demo import show
from tests.demo.show import gpus_of

GPUS = [
    {"index": 1, "uuid": "GPU-b", "memoryBytes": 2},
    {"index": 0, "uuid": "GPU-a", "memoryBytes": 1},
]


def test_gpus_are_waited_for_that_an_agent_tells_of_later() -> None:
    told = iter([{}, {"gpus": []}, {"gpus": GPUS[:1]}, {"gpus": GPUS}])
    assert gpus_of(lambda: next(told), 2) == [("GPU-a", 1), ("GPU-b", 2)]


def test_gpus_that_nobody_tells_of_are_an_error(monkeypatch) -> None:
    monkeypatch.setattr(show, "READY_LIMIT", 0.0)
    with pytest.raises(DeadlineError, match="1 of 2 GPUs"):
        gpus_of(lambda: {"gpus": GPUS[:1]}, 2)
