"""Which GPUs models get, and when a model is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.api.turns import VRAM
from kybernate.local.specs import ModelSpec, declared, group_of, placed, seat_of, why_left_out
from kybernate.types import Gpu, GpuUuid, Tier

GIB = 1 << 30
GPUS = tuple(Gpu(GpuUuid(f"GPU-{index}"), index, "toy", 80 * GIB) for index in range(4))


def spec(name: str, **more) -> ModelSpec:
    return ModelSpec(name, ("serve", name), "127.0.0.1:5800", **more)


def indices(*specs: ModelSpec, gpus: tuple[Gpu, ...] = GPUS) -> dict[str, list[int]]:
    return {name: [gpu.index for gpu in found] for name, found in placed(specs, gpus).items()}


def test_what_a_server_freed_before_its_park_is_no_measure_of_it():
    for given, by_parks, vram in (
        ({"measured": GIB}, True, GIB),
        ({"measured": GIB, "cooperate": "vllm"}, False, None),
        ({"vram": 2 * GIB, "cooperate": "vllm"}, False, 2 * GIB),
    ):
        one = spec("a", **given)
        assert one.by_parks is by_parks
        assert seat_of(one, GPUS[:1], 0.0, 0.0).identity.vram == vram


def test_counts_go_where_the_least_is_declared():
    models = [spec("a", vram=60 * GIB), spec("b", vram=20 * GIB), spec("c", gpus=2), spec("d")]
    assert indices(*models) == {"a": [0], "b": [1], "c": [2, 3], "d": [1]}


def test_indices_are_taken_as_they_are_and_none_is_all():
    models = [spec("a", gpus=(3, 1)), spec("b", gpus=None)]
    assert indices(*models) == {"a": [3, 1], "b": [0, 1, 2, 3]}


def test_what_the_box_has_not_got_is_left_out():
    models = [spec("a", gpus=(7,)), spec("b", gpus=5), spec("c", vram=90 * GIB), spec("d")]
    assert list(indices(*models)) == ["d"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"gpus": (7,)}, "the GPUs 7 (gpus);"),
        ({"gpus": 5}, "5 of the GPUs (gpus);"),
        ({"vram": 90 * GIB}, "1 of the GPUs (gpus), with 92160 MiB each (vram);"),
        ({"gpus": None}, "all GPUs;"),
    ],
)
def test_what_is_left_out_says_what_it_asks_for_and_what_there_is(wanted, said):
    text = why_left_out(spec("a", **wanted), GPUS[:2])
    assert text.startswith(f"model a is left out: it asks for {said}")
    assert text.endswith("GPUs here: 0 (81920 MiB), 1 (81920 MiB)")
    assert why_left_out(spec("a"), ()).endswith("GPUs here: none that is healthy")


def test_the_same_file_gives_the_same_places():
    models = [spec(name, vram=30 * GIB) for name in "abcdefg"]
    assert indices(*models) == indices(*models)


def test_a_model_is_another_one_only_if_its_process_would_be():
    model = spec("a", vram=GIB)
    uid = model.uid(GPUS[:1])
    for change in ({"ttl": 5.0}, {"pin": True}, {"grace": 1.0}, {"priority": 3}, {"check": "/x"}):
        assert replace(model, **change).uid(GPUS[:1]) == uid
    for change in ({"argv": ("x",)}, {"env": (("A", "1"),)}, {"address": "[::1]:1"}, {"vram": 2}):
        assert replace(model, **change).uid(GPUS[:1]) != uid
    assert model.uid(GPUS[1:2]) == uid  # it may be on any of them
    pair = replace(model, gpus=2)
    assert pair.uid(GPUS[:2]) != pair.uid(GPUS[2:])


def test_a_seat_starts_when_it_is_called_for_or_at_once():
    assert seat_of(spec("a"), GPUS[:1], 0.0, 0.0).ending.on_demand
    assert not seat_of(spec("a", preload=True), GPUS[:1], 0.0, 0.0).ending.on_demand


def test_a_ttl_is_the_idleness_in_which_it_leaves_its_gpus():
    assert seat_of(spec("a", ttl=30.0), GPUS[:1], 0.0, 0.0).wishes.idle == {VRAM: 30.0}
    assert seat_of(spec("a"), GPUS[:1], 0.0, 0.0).wishes.idle == {}


def test_only_a_model_of_one_gpu_may_be_anywhere():
    one, listed = spec("a", gpus=1), spec("a", gpus=(2,))
    assert seat_of(one, GPUS[:1], 0.0, 0.0).identity.anywhere
    for pinned in (listed, spec("a", gpus=2), spec("a", gpus=None)):
        assert not seat_of(pinned, GPUS[2:3], 0.0, 0.0).identity.anywhere
    assert one.uid(GPUS[2:3]) != listed.uid(GPUS[2:3])


def test_a_seat_knows_when_its_answers_are_in_time():
    assert seat_of(spec("a", ready_within=4.0), GPUS[:1], 0.0, 0.0).wishes.ready_within == 4.0
    turning = spec("a", ready_within=4.0, weight=7.0)
    assert seat_of(turning, GPUS[:1], 0.0, 0.0).wishes.ready_within == 4.0


def test_a_model_that_takes_turns_leaves_for_no_idleness():
    wishes = seat_of(spec("a", weight=7.0, ttl=30.0), GPUS[:1], 0.0, 0.0).wishes
    assert (wishes.weight, wishes.turn_weight, wishes.idle) == (7.0, 7.0, {})


def test_a_group_is_named_by_its_gpus():
    group = group_of((GPUS[0], GPUS[3]))
    assert group.name == "gpu-0-3"
    assert group.gpus == ("GPU-0", "GPU-3")


def test_an_idle_limit_of_ram_has_the_model_leave_it():
    spec = ModelSpec("a", ("serve",), "127.0.0.1:5800", ttl=5.0, ram_idle=60.0)
    found = declared(spec)
    assert found.idle == {"vram": 5.0, "ram": 60.0}
    assert found.park_tier is Tier.NVME
