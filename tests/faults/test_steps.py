"""kill -9 of agent and helper after every journalled step, and within every driver call."""

from __future__ import annotations

import itertools
import os
import signal
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import AGENT_PROBE_PORT
from tests.faults.scenes.agent import Orders
from tests.faults.scenes.scene import NODE
from tests.faults.scenes.stream import LIMIT
from tests.kit.pods import SeatPod, ready
from tests.simgpu import Call, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tests.faults.scenes.scene import Scene
    from tests.kit.clients.models import Answer

pytestmark = pytest.mark.faults

SEATS = ("left", "right")
VICTIMS = ("agent", "helper")
PARK_CALLS = (Call.GET_STATE, Call.LOCK, Call.CHECKPOINT)
CALLS = {call: "park" if call in PARK_CALLS else "wake" for call in list(Call)[1:]}


class Pair:
    """Two seats of one GPU; `left` is the one whose steps are interrupted."""

    def __init__(self, scene: Scene, orders: Orders) -> None:
        self.scene = scene
        self.orders = orders
        scene.cast.pods |= dict(zip(SEATS, SEATS, strict=True))
        for name in SEATS:
            scene.pods.create(SeatPod(name, node=NODE, annotations={keys.REQUIRE_GROUP: "G0"}))
        before = scene.pods.wait(SEATS, ready, LIMIT, "Ready")
        self.before = {name: scene.look(name) for name in before}
        self.counters = {name: scene.ask(name).counter for name in SEATS}

    @property
    def uid(self) -> str:
        """The watched seat's pod."""
        return self.before["left"].uid

    def ask(self, name: str) -> None:
        """One request, answered by the process that answered all before."""
        self.counters[name] += 1
        assert self.scene.ask(name).counter == self.counters[name]

    def begin(self, what: str) -> None:
        """Have `left` active before a park, parked before a wake."""
        first, then = SEATS if what == "wake" else SEATS[::-1]
        self.ask(first)
        self.ask(then)
        self.scene.wait_states({"left": "active" if what == "park" else "parked"})

    def swap(self, what: str, strike: Callable[[], None]) -> None:
        """Park or wake `left` by a request, strike, and see the request answered."""
        asked = "right" if what == "park" else "left"
        pending = self.scene.send(asked)
        strike()
        wait_until(lambda: self._nudged(pending), LIMIT, f"{asked} doesn't answer")
        self.counters[asked] += 1
        answer = pending.result(LIMIT)
        assert answer.status == 200, answer.body
        assert answer.intact
        assert answer.counter == self.counters[asked]

    def _nudged(self, pending: Future[Answer]) -> bool:
        """Whether it is answered; a killed agent starts without the supervisor's back-off."""
        agent = self.scene.node.agent
        if agent.info["state"] == "restarting":
            agent.start()
        return pending.done()

    def whole(self) -> None:
        """Both answer and nothing is out of order."""
        self.scene.wait_answer(AGENT_PROBE_PORT)
        for name in SEATS:
            self.ask(name)
        wrong = self.scene.clean()
        assert not wrong
        for name in SEATS:
            seen = self.scene.look(name)
            assert (seen.restarts, seen.ready_since) == (0, self.before[name].ready_since)


@pytest.fixture(scope="module")
def pair(scene: Scene) -> Iterator[Pair]:
    """The two seats, under an agent whose journal kills."""
    scene.remove(list(scene.pods.all()))
    orders = Orders(scene.node.simgpu_root / "orders")
    with scene.other_agent("tests.faults.scenes.agent", {"TEST_ORDERS": "/run/simgpu/orders"}):
        yield Pair(scene, orders)
        scene.remove(list(scene.pods.all()))
        scene.cast.pods.clear()


@pytest.mark.parametrize("what", ["park", "wake"])
@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_after_every_journalled_step(
    pair: Pair, victim: str, what: str, figures: list[str]
) -> None:
    steps = 0
    for step in itertools.count(1):
        pair.begin(what)
        agent = pair.scene.node.agent
        starts = agent.starts
        pair.orders.give(pair.uid, step, victim)
        pair.swap(what, lambda: None)
        if victim == "helper" or agent.starts == starts:
            pair.scene.wait_states({"left": "parked" if what == "park" else "active"})
        if pair.orders.withdraw():
            break
        pair.whole()
        steps += 1
    figures.append(f"{victim} killed after each of the {steps} journalled steps of a {what}")
    assert steps >= 2


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name.lower())
@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_in_every_driver_call(pair: Pair, victim: str, call: Call) -> None:
    scene, what = pair.scene, CALLS[call]
    pair.begin(what)

    def strike() -> None:
        wait_until(lambda: not scene.faults.uses_left(Fault.HOLD), LIMIT, "no call was held")
        if victim == "agent":
            scene.kill(scene.node.agent)
        else:
            for pid in scene.helpers():
                os.kill(pid, signal.SIGKILL)
        scene.faults.clear(Fault.HOLD)

    scene.faults.inject(Fault.HOLD, call=call, pod=pair.uid, times=1)
    pair.swap(what, strike)
    pair.whole()
