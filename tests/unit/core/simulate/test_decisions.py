"""What the product decides on recorded traces, so that code made faster decides the same."""

from __future__ import annotations

import hashlib
import random

import pytest

from kybernate.core.simulate.outcome import POLICIES
from kybernate.core.simulate.trace import Trace
from kybernate.core.simulate.world import Costs, World

SIZES = (8.0, 16.0, 40.0, 70.0)
RECORDED = {
    ("ours", 32, 8, 0.5): "88edaf7572f4bf51",
    ("ours", 32, 8, 2.25): "1bf4d34adc5847b3",
    ("ours", 64, 3, 1.0): "69da9b66ba3a4a9a",
    ("fixed", 32, 8, 2.25): "6f73adf0b505b118",
    ("fifo", 32, 5, 1.0): "8f63eb144c596565",
}
"""Of each policy with so many models, GPUs and requests a second, what it did. Another policy has
others: record them again once it is known why."""


def played(models: int, rate: float) -> Trace:
    """Three hundred requests, the models by Zipf's law."""
    rng = random.Random(f"{models} {rate}")
    at = 0.0
    rows = []
    for _ in range(300):
        at += rng.expovariate(rate)
        law = [1 / (n + 1) for n in range(models)]
        rows.append((at, rng.choices(range(models), law)[0], rng.expovariate(1 / 4.0)))
    names = [f"m{n}" for n in range(models)]
    return Trace(*zip(*rows, strict=True), names, [SIZES[n % 4] for n in range(models)])


def noted(world: World, done: list[str]) -> None:
    """From now on, what the world is told to do is noted."""
    for name in ("park", "wake", "close", "reopen"):

        def note(*args: int, name: str = name, do: object = getattr(world, name)) -> None:
            done.append(f"{name} {args} {world.now:.6f}")
            do(*args)

        setattr(world, name, note)


@pytest.mark.parametrize("found", RECORDED, ids=str)
def test_the_same_is_decided_as_was_recorded(found):
    name, models, gpus, rate = found
    world = World(played(models, rate), gpus, Costs())
    done: list[str] = []
    noted(world, done)
    world.run(POLICIES[name](world))
    assert len(done) > 100
    assert hashlib.sha256("\n".join(done).encode()).hexdigest()[:16] == RECORDED[found]
