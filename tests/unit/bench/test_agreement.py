"""What is set beside the simulation: the requests as they were played, and each GPU with its own
models."""

from __future__ import annotations

import threading
import time

import pytest

from bench.cluster.agreement import by_gpu, compared, of_models
from bench.played import difference, played
from kybernate.core.simulate.trace import Trace
from kybernate.core.simulate.world import Costs
from tests.demo.observe import SeatRow

TRACE = Trace(
    at=[0.0, 1.0, 2.0, 3.0],
    models=[2, 0, 1, 2],
    work=[5.0, 6.0, 7.0, 8.0],
    names=["m0", "m1", "m2"],
    sizes=[50.0, 51.0, 52.0],
)
COSTS = Costs(gpu_gb=80.0, wake=100.0, park=100.0, slack=2.0)


def row(model: str, node: str, group: str) -> SeatRow:
    return SeatRow(node, group, f"{group}-1", f"{model}-x", model, "parked", 0, 0, 0, 0.0)


def test_the_requests_of_some_models_alone() -> None:
    found = of_models(TRACE, {"m2", "m1"})
    assert (found.at, found.models, found.work) == ([0.0, 2.0, 3.0], [1, 0, 1], [5.0, 7.0, 8.0])
    assert (found.names, found.sizes) == (["m1", "m2"], [51.0, 52.0])


def test_each_gpu_is_simulated_with_the_models_that_are_on_it() -> None:
    """m0 and m2 share one GPU: m0 waits until m2 has answered and is parked, and then m2 for m0. m1
    has one for itself."""
    gpus = by_gpu([row("m1", "n2", "G0"), row("m2", "n1", "G0"), row("m0", "n1", "G0")])
    assert [*gpus] == ["n1/G0", "n2/G0"]
    worlds, figures = compared(TRACE, [0.0, 1.9, 0.0, 2.5], gpus, {"n1": COSTS, "n2": COSTS}, 2.0)
    assert figures["n1/G0"] == {
        "models": ["m0", "m2"],
        "requests": 3,
        "in_time": 2,
        "simulated": 1,
    }
    assert figures["n2/G0"] == {"models": ["m1"], "requests": 1, "in_time": 1, "simulated": 1}
    first = 0.52 + 5.0 + 0.52 + 0.5  # m2's wake and work, its park, and the wake of m0
    assert worlds[0].waits[0] == pytest.approx([first - 1.0])
    assert worlds[0].waits[1] == pytest.approx([0.52, first + 6.0 + 0.5 + 0.52 - 3.0])
    assert worlds[1].waits == [pytest.approx([0.51])]
    assert [world.swaps for world in worlds] == [3, 1]


def test_a_node_that_swaps_slowly_is_simulated_so() -> None:
    gpus, slow = {"n1/G0": [row("m1", "n1", "G0")]}, Costs(wake=10.0, slack=2.0)
    _, figures = compared(TRACE, [0.0] * 4, gpus, {"n1": slow}, 2.0)
    assert (figures["n1/G0"]["in_time"], figures["n1/G0"]["simulated"]) == (1, 0)


def test_requests_are_played_when_they_come_and_none_waits_for_another() -> None:
    trace = Trace([0.0, 0.1, 0.2], [0, 1, 0], [0.5, 1.5, 2.5], ["a", "b"], [1.0, 1.0])
    came, beside = dict[tuple[str, float], float](), threading.Barrier(3)

    def ask(model: str, work: float) -> float:
        came[model, work] = time.monotonic() - began
        beside.wait(60)
        return work

    began = time.monotonic()
    assert played(ask, trace) == [0.5, 1.5, 2.5]
    assert came.keys() == {("a", 0.5), ("b", 1.5), ("a", 2.5)}
    assert came["b", 1.5] >= 0.1
    assert came["a", 2.5] >= 0.2


def test_a_request_that_is_refused_is_no_request_in_time() -> None:
    def ask(model: str, _: float) -> float:
        raise SystemExit(f"{model} is refused")

    with pytest.raises(SystemExit, match="m0 is refused"):
        played(ask, Trace([0.0], [0], [0.0], ["m0"], [1.0]))


@pytest.mark.parametrize(("real", "said", "found"), [(0.9, 1.0, 0.1), (0.0, 0.0, 0.0), (1, 0, 1)])
def test_the_difference_is_by_ratio(real: float, said: float, found: float) -> None:
    assert difference(real, said) == pytest.approx(found)
