"""Who holds a GPU's memory, as the demo reads it from the driver's log."""

from __future__ import annotations

import json

import pytest

from kybernate.local.simgpu import layout
from tests.demo.observe import Memory

MODELS = {"uid-a": "birch", "uid-b": "ember"}


@pytest.fixture
def memory(tmp_path):
    def write(*events):
        lines = [
            json.dumps(
                {
                    "t": at,
                    "event": event,
                    "gpu": "GPU-1",
                    "pod": pod,
                    "pid": 7,
                    "pidns": number,
                    "bytes": held,
                    "held": held,
                    "why": "test",
                }
            )
            for at, (event, pod, number, held) in enumerate(events)
        ]
        (tmp_path / layout.LOG_FILE).write_text("\n".join([*lines, ""]))
        return Memory("n1", tmp_path, [("GPU-1", 80), ("GPU-2", 80)])

    return write


def test_bytes_are_shown_by_model(memory):
    found = memory(
        ("acquire", "uid-a", 1, 50), ("release", "uid-a", 1, 0), ("acquire", "uid-b", 2, 70)
    )
    first, second = found.rows(MODELS)
    assert (first.index, first.memory, first.held) == (0, 80, {"ember": 70})
    assert second.held == {}
    assert found.overlaps(MODELS) == ([], 3)


def test_two_holders_of_one_gpu_are_named(memory):
    found = memory(("acquire", "uid-a", 1, 50), ("acquire", "uid-b", 2, 10))
    (overlap,), _ = found.overlaps(MODELS)
    assert "birch" in overlap
    assert "ember" in overlap
