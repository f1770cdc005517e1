"""Agents under load while replicas are killed: what was answered must be true, and stay true.

Each story is one pod's: saved, copied, dropped, stopped, claimed by two at once. Where an answer
never came, the same call is made again, at any replica, as an agent would; an answer that isn't
what the calls before it imply is a wrong one.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, TypeVar

from bench.report import say
from kybernate.adapters.registry import wire
from kybernate.errors import ConflictError, DeadlineError, KybernateError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kybernate.adapters.registry.client import Registry
    from tests.kit.servers.registryserver import Server

R = TypeVar("R")

NODES = ("n1", "n2")
NAMESPACE = "storm"
STORE = "s3://storm"
ATTEMPT_S = 2.0
LIMIT_S = 60.0
_DIGEST = "ab" * 32


class Agents:
    """The agents of two nodes; each call goes to any replica, and again until it is answered."""

    def __init__(self, servers: Sequence[Server], seed: int) -> None:
        self._clients = [
            {name: server.client(name) for name in ("agent-n1", "agent-n2", "controller")}
            for server in servers
        ]
        self._random = Random(seed)
        self.again = 0
        self.calls = 0

    def ask(self, name: str, call: Callable[[Registry], R]) -> R:
        """The answer, or the refusal, of whichever replica gives one."""
        ends = time.monotonic() + LIMIT_S
        while True:
            self.calls += 1
            try:
                return call(self._random.choice(self._clients)[name])
            except DeadlineError:
                self.again += 1
                if time.monotonic() > ends:
                    raise


class Storm:
    """Stories by several threads, and what was wrong in them."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self.wrong: Counter[str] = Counter()
        self.stories = self.kills = self.calls = self.again = 0
        self._done: list[tuple[str, str]] = []
        self._over = threading.Event()

    def run(self, workers: int, kills: int, between_s: float) -> None:
        """Kill a replica in turn, so often; then read again what all stories ended with."""
        with ThreadPoolExecutor(workers + 1) as pool:
            every = [pool.submit(self._work, number) for number in range(workers)]
            try:
                for number in range(kills):
                    time.sleep(between_s)
                    server = self._servers[number % len(self._servers)]
                    server.kill()
                    self.kills += 1
                    time.sleep(0.2)
                    server.start()
                time.sleep(between_s)
            finally:
                self._over.set()
            for each in every:
                each.result()
        self._check_all()

    def _work(self, worker: int) -> None:
        number = 0
        while not self._over.is_set():
            agents = Agents(self._servers, 1000 * worker + number)
            story = Story(agents, f"w{worker}-{number}", self.wrong)
            try:
                self._done.append((story.uid, story.play()))
            except KybernateError as error:
                say(f"{story.uid}: {error}")
                self.wrong[f"unexpected: {type(error).__name__}"] += 1
            self.stories += 1
            self.calls += agents.calls
            self.again += agents.again
            number += 1

    def _check_all(self) -> None:
        agents = Agents(self._servers, 7)
        for uid, heir in self._done:
            pod = agents.ask("controller", lambda to: to.pod(NAMESPACE, uid, ATTEMPT_S))  # noqa: B023
            self.wrong["another successor in the end"] += pod.successor != heir
            wanted = wire.Filter(namespace=NAMESPACE, pod_uid=uid)
            page = agents.ask("controller", lambda to: to.page(wanted, ATTEMPT_S))  # noqa: B023
            self.wrong["artifacts lost in the end"] += len(page.items) != 2
            kept = [copy.state for item in page.items for copy in item.copies]
            self.wrong["copies lost in the end"] += kept.count(wire.CopyState.VERIFIED) != 2


class Story:
    """One pod's."""

    def __init__(self, agents: Agents, uid: str, wrong: Counter[str]) -> None:
        self.uid = uid
        self._agents = agents
        self._wrong = wrong

    def play(self) -> str:
        """All of it; gives the successor."""
        first = self._lease()
        self._record(1, first)
        self._saw("a write that nobody sees", self._artifact(1).copies != [])
        self._ask("agent-n1", lambda to: to.report(self._id(1), self._stored(), ATTEMPT_S))
        second = self._lease()
        self._saw("a token that is not newer", second > first)
        self._refused("an old token counts", lambda: self._record(2, first))
        self._record(2, second)
        wanted = wire.Latest(namespace=NAMESPACE, pod_uid=self.uid)
        newest = self._ask("controller", lambda to: to.latest(wanted, ATTEMPT_S))
        self._saw("the latest is an older one", newest.id == self._id(2))
        self._drop_copies()
        self._ask("agent-n1", lambda to: to.stopped(NAMESPACE, self.uid, _ENDED, ATTEMPT_S))
        heir = self._claims()
        self._refused("a token of before the claim counts", lambda: self._record(3, second))
        self._refused("a claim ended without proof", lambda: self._release(heir))
        return heir

    def _drop_copies(self) -> None:
        local = wire.Spot(place=Tier.NVME, node="n1")
        store = wire.Spot(place=Tier.OBJECT, store=STORE)
        self._ask("agent-n1", lambda to: to.drop(self._id(1), local, "", ATTEMPT_S))
        self._refused(
            "the last copy was dropped",
            lambda: self._ask("agent-n1", lambda to: to.drop(self._id(1), store, "", ATTEMPT_S)),
        )

    def _claims(self) -> str:
        """Two at once; exactly one may get it."""
        with ThreadPoolExecutor(2) as pool:
            tries = {node: pool.submit(self._claim, node) for node in NODES}
        won = [f"{self.uid}-{node}" for node, one in tries.items() if one.result()]
        self._saw("not one successor", len(won) == 1)
        pod = self._ask("controller", lambda to: to.pod(NAMESPACE, self.uid, ATTEMPT_S))
        self._saw("another successor than was told", [pod.successor] == won)
        return pod.successor

    def _claim(self, node: str) -> bool:
        wanted = wire.Claim(artifact=self._id(2), successor=f"{self.uid}-{node}", node=node)
        try:
            self._ask(f"agent-{node}", lambda to: to.claim(NAMESPACE, self.uid, wanted, ATTEMPT_S))
        except ConflictError:
            return False
        return True

    def _release(self, heir: str) -> None:
        self._ask("controller", lambda to: to.release(NAMESPACE, self.uid, heir, ATTEMPT_S))

    def _lease(self) -> int:
        pod, wish = (NAMESPACE, self.uid), wire.LeaseWish(seconds=30)
        return self._ask("agent-n1", lambda to: to.lease(pod, wish, ATTEMPT_S)).token

    def _record(self, number: int, token: int) -> None:
        body = {
            "artifact": {
                "digest": _DIGEST,
                "pod": "storm",
                "pod_uid": self.uid,
                "size": 1000,
                "created_ms": number,
            },
            "held": {"place": "nvme", "node": "n1", "state": "verified", "size": 10},
            "token": token,
        }
        recording = wire.Recording.model_validate_json(json.dumps(body))
        self._ask("agent-n1", lambda to: to.record(self._id(number), recording, ATTEMPT_S))

    def _stored(self) -> wire.CopyReport:
        held = wire.Copy(place=Tier.OBJECT, store=STORE, state=wire.CopyState.VERIFIED, size=5)
        return wire.CopyReport(digest=_DIGEST, held=held)

    def _artifact(self, number: int) -> wire.Entry:
        return self._ask("controller", lambda to: to.get(self._id(number), ATTEMPT_S))

    def _id(self, number: int) -> str:
        return f"{NAMESPACE}/{self.uid}@20261121T000000Z-{number:08x}"

    def _ask(self, name: str, call: Callable[[Registry], R]) -> R:
        return self._agents.ask(name, call)

    def _saw(self, what: str, right: object) -> None:
        self._wrong[what] += not right

    def _refused(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except ConflictError:
            return
        except KybernateError as error:
            what = f"{what}: {error}"
        self._wrong[what] += 1


_ENDED = wire.Stop(proof=wire.Proof.AGENT, why="ended")
