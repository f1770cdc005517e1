"""What a model takes that does not say it is what it held at its parks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kybernate.local.folders import Numbers
from kybernate.local.measured import Measured
from kybernate.local.specs import ModelSpec, group_of, seat_of
from kybernate.types import Gpu, GpuUuid, SeatState

MIB = 1 << 20
GPUS = tuple(Gpu(GpuUuid(f"GPU-{n}"), n, "toy", 64 * MIB, 0, True) for n in range(2))


class Node:
    """What is asked of a node."""

    def __init__(self):
        self.inventory = SimpleNamespace(memory=lambda: {gpu.uuid: gpu.memory for gpu in GPUS})
        self.settings = SimpleNamespace(reserve_bytes=2 * MIB)
        self.saved = []

    def save(self, seat):
        self.saved.append(seat.identity.vram)


@pytest.fixture
def kept(tmp_path):
    return Numbers(tmp_path / "vram.json", "vram")


def parked(*held, vram=None):
    spec = ModelSpec("a", ("serve",), "127.0.0.1:5800", gpus=len(held), vram=vram)
    seat = seat_of(spec, GPUS[: len(held)], 0.0, 0.0)
    seat.state = SeatState.PARKED
    seat.tree.held = dict(zip(group_of(GPUS[: len(held)]).gpus, held, strict=True))
    return seat


def test_a_park_measures_and_the_next_start_knows(kept):
    seat, node = parked(20 * MIB + 1), Node()
    one = Measured(kept, node)
    one.only([seat.uid])
    assert one.of(seat.uid) is None
    one.seat_changed(seat)
    assert (seat.identity.vram, node.saved) == (21 * MIB, [21 * MIB])
    assert Measured(kept, node).of(seat.uid) == 21 * MIB


def test_the_most_counts_of_all_parks_and_of_all_gpus(kept):
    seat = parked(20 * MIB, 30 * MIB)
    one = Measured(kept, Node())
    one.only([seat.uid])
    for size, most in ((1, 30), (40, 40), (2, 40)):
        seat.tree.held = {**seat.tree.held, GPUS[0].uuid: size * MIB}
        one.seat_changed(seat)
        assert seat.identity.vram == most * MIB


def test_what_the_file_says_counts(kept):
    seat = parked(20 * MIB, vram=50 * MIB)
    one = Measured(kept, Node())
    one.only([])
    one.seat_changed(seat)
    assert seat.identity.vram == 50 * MIB
    assert not kept.path.exists()


def test_a_model_that_fills_its_gpu_keeps_it_to_itself(kept):
    seat = parked(63 * MIB)
    one = Measured(kept, Node())
    one.only([seat.uid])
    one.seat_changed(seat)
    assert seat.identity.vram is None


def test_models_that_left_the_file_are_forgotten(kept):
    kept.write({"model-gone": MIB})
    seat = parked(20 * MIB)
    one = Measured(kept, Node())
    one.only([seat.uid])
    one.seat_changed(seat)
    assert kept.read() == {seat.uid: 20 * MIB}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 2, "vram": {"a": 1}}'])
def test_a_file_of_another_format_has_none(kept, text):
    kept.path.write_text(text)
    assert kept.read() == {}


def test_only_numbers_above_0_count(kept):
    kept.path.write_text('{"format": 1, "vram": {"a": 5, "b": -1, "c": 0, "d": true, "e": "6"}}')
    assert kept.read() == {"a": 5}
