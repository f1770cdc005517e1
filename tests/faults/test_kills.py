"""2,000 random kills: as many of real processes as the time allows, the rest in simulation."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import requests

from kybernate import keys
from kybernate.errors import NotFoundError
from tests.cluster.layout import REPOSITORY
from tests.cluster.spec import AGENT_PROBE_PORT
from tests.faults.scenes.scene import GPUS, NODE
from tests.faults.scenes.stream import LIMIT
from tests.kit.clients.models import Models
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from tests.faults.scenes.scene import Scene

pytestmark = pytest.mark.faults

KILLS = 2000
REAL_SECONDS = float(os.environ.get("KYB_FAULTS_KILL_SECONDS", "420"))
SEED = int(os.environ.get("KYB_FAULTS_SEED", "1"))
SEATS_PER_GPU = 2


class Client(threading.Thread):
    """Asks one model again and again, and checks that it counts without a gap."""

    def __init__(self, proxy: str, model: str, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.model = model
        self.answered = 0
        self.problems: list[str] = []
        self.over = threading.Event()
        self._models = Models(proxy)
        self._dice = dice
        self._counter: int | None = None

    def run(self) -> None:
        """Until `over`."""
        while not self.over.is_set():
            self._ask()
            self.over.wait(self._dice.uniform(0, 0.6))
        self._models.close()

    def _ask(self) -> None:
        try:
            answer = self._models.ask(self.model, limit=LIMIT)
        except requests.RequestException as error:
            self.problems.append(f"{self.model}: {error}")
            return
        if answer.status != 200 or not answer.intact:
            self.problems.append(f"{self.model} answered {answer.status}: {answer.body}")
            return
        if self._counter is not None and answer.counter != self._counter + 1:
            self.problems.append(f"{self.model} counted {answer.counter} after {self._counter}")
        self._counter = answer.counter
        self.answered += 1


@pytest.mark.timeout(1200)
def test_random_kills_of_agent_and_helpers(scene: Scene, figures: list[str]) -> None:
    dice = random.Random(SEED)
    names = _seats(scene)
    before = {name: scene.look(name) for name in names}
    clients = [
        Client(scene.cluster.proxy_url, name, random.Random(dice.random())) for name in names
    ]
    for client in clients:
        client.start()
    agents, helped = _kill_at_random(scene, dice)
    scene.wait_answer(AGENT_PROBE_PORT)
    for client in clients:
        client.over.set()
        client.join(LIMIT)
    problems = [problem for client in clients for problem in client.problems]
    assert not problems
    for name in names:
        scene.ask(name)
        seen = scene.look(name)
        assert (seen.restarts, seen.ready_since) == (0, before[name].ready_since)
    wrong = scene.clean()
    assert not wrong
    answered = sum(client.answered for client in clients)
    figures.append(
        f"random kills of real processes: {agents + helped} ({agents} agents, {helped} helpers; "
        f"seed {SEED}), {answered} requests answered, 0 lost"
    )
    scene.kills = agents + helped
    scene.remove(names)
    scene.cast.pods.clear()


def _seats(scene: Scene) -> list[str]:
    scene.remove(list(scene.pods.all()))
    for number in range(GPUS * SEATS_PER_GPU):
        name = f"model-{number}"
        scene.cast.pods[name] = name
        group = {keys.REQUIRE_GROUP: f"G{number % GPUS}"}
        scene.pods.create(SeatPod(name, node=NODE, annotations=group))
    names = [f"model-{number}" for number in range(GPUS * SEATS_PER_GPU)]
    scene.pods.wait(names, ready, 2 * LIMIT, "Ready")
    return names


def _kill_at_random(scene: Scene, dice: random.Random) -> tuple[int, int]:
    """Kill until the time is over; how many agents and helpers it were."""
    agents = helped = 0
    until = time.monotonic() + REAL_SECONDS
    while time.monotonic() < until:
        if dice.random() < 0.5:
            with suppress(NotFoundError):
                scene.kill(scene.node.agent)
                agents += 1
            # Before it serves again, or after, however long that takes on a busy machine: one that
            # never comes to serve answers nobody.
            if dice.random() < 0.5:
                scene.wait_answer(AGENT_PROBE_PORT)
            time.sleep(dice.uniform(0.0, 0.8))
        else:
            for pid in dice.sample(found := scene.helpers(), min(len(found), 2)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    helped += 1
            time.sleep(dice.uniform(0.0, 0.4))
    return agents, helped


@pytest.mark.timeout(1200)
def test_the_rest_of_two_thousand_kills_in_simulation(scene: Scene, figures: list[str]) -> None:
    wanted = max(1, KILLS - scene.kills)
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--kills", str(wanted), "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["violations"] == 0
    assert result["kills"] + scene.kills >= KILLS
    figures.append(
        f"random kills in simulation: {result['kills']} in {result['schedules']} schedules, "
        f"0 violations; {result['kills'] + scene.kills} kills in all"
    )
