"""One history: what a few clients do to a namespace's pods at the same time, and what they hear.

Clients act on what any of them was told, however long ago, as agents do that were cut off; most of
what they ask for is nearly right, so that races are about something.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any

from bench.saved.histories.lines import NotSentError, Request, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.saved.histories.lines import Answer, Lines

    Wish = dict[str, Any]

NODES = ("n1", "n2")
NAMES = ("agent-n1", "agent-n2", "controller")
CLIENTS = 4
CALLS = 6
"""Of each client, beside those made again."""

PATIENCE_S = 60.0
_HOMES = ("n1", "n1", "n2")
"""Where the pods run, or most callers think so."""

_LASTS_S = (0.02, 0.05, 30.0)
_DIGEST = "ab" * 32
_WEIGHTS: Mapping[str, Mapping[str, int]] = {
    "leases": {"get": 2, "lease": 5, "renew": 4, "give_back": 2, "record": 2, "stop": 1},
    "claims": {"get": 2, "claim": 6, "release": 3, "stop": 3, "lease": 3, "record": 1, "renew": 1},
}
_RECORD = (
    *("version", "node", "token", "holder", "until_ms", "successor", "successor_node"),
    *("artifact", "ended"),
)


class Story:
    """A namespace of its own, which nobody touched before."""

    def __init__(self, namespace: str, seed: str, losses: float, off_ms: int = 0) -> None:
        """`losses`: which share of the calls gets no answer; `off_ms`: how far the registry's clock
        may be from its own of a moment ago."""
        self.namespace = namespace
        self.calls: list[dict[str, Any]] = []
        """As tests/kit/porcupine/model.go has them."""
        self.off_ms = off_ms
        self._losses, self._seed = losses, seed
        self._about = Random(seed).choice(sorted(_WEIGHTS))
        self._tokens: dict[int, list[tuple[str, int]]] = {}
        self._versions: dict[int, int] = {}

    @property
    def lost(self) -> int:
        """Calls without an answer."""
        return sum(call["status"] == 0 for call in self.calls)

    def begin(self, lines: Lines) -> None:
        """What comes before the clients: a pod whose state can be claimed."""
        if self._about == "claims":
            client = Client(self, lines, 0, Random(f"{self._seed} begins"))
            for kind in ("lease", "record", "stop"):
                client.tell({**client.wish(kind, 0), "node": _HOMES[0], "runs": True})

    def client(self, lines: Lines, number: int) -> None:
        """All that one client does."""
        random = Random(f"{self._seed} {number}")
        client, weights = Client(self, lines, number, random), _WEIGHTS[self._about]
        for _ in range(CALLS):
            (kind,) = random.choices(list(weights), weights=list(weights.values()))
            lost = random.random() < self._losses
            way = random.choice((Way.DEAF, Way.DEAF, Way.CUT)) if lost else Way.HEARD
            client.tell(client.wish(kind, random.choice((0, 0, 1, 2))), way)

    def heard(self, call: Wish, answer: Mapping[str, Any]) -> None:
        """What all clients know from now on."""
        self._versions[call["pod"]] = answer["version"]
        if call["kind"] == "lease":
            given = call["node"], answer["token"]
            self._tokens.setdefault(call["pod"], []).append(given)

    def token(self, pod: int, random: Random) -> tuple[str, int]:
        """A node and a token of the pod's: mostly the newest that somebody heard of."""
        given = self._tokens.get(pod) or [(_HOMES[pod], 1)]
        return given[-1] if random.random() < 0.6 else random.choice(given)

    def version(self, pod: int) -> int | None:
        """The pod's, as it was last heard of."""
        return self._versions.get(pod)


class Client:
    """One of a story's clients."""

    def __init__(self, story: Story, lines: Lines, number: int, random: Random) -> None:
        self._story, self._lines, self._number, self._random = story, lines, number, random

    def wish(self, kind: str, pod: int) -> Wish:
        """A call of this kind, as the model has it, without times."""
        random = self._random
        call: Wish = {"kind": kind, "pod": pod, "node": random.choice(NODES)}
        if kind in ("lease", "renew"):
            call["lasts_ms"] = int(random.choice(_LASTS_S) * 1000)
        if kind == "lease":
            call["runs"] = random.random() < 0.6
        if kind in ("renew", "give_back", "record"):
            call["node"], call["token"] = self._story.token(pod, random)
        if kind == "stop":
            call |= {"node": _HOMES[pod], "proof": random.choice(("agent", "agent", "deleted"))}
        if kind in ("claim", "release"):
            others = [one for one in range(len(_HOMES)) if one != pod]
            itself = random.random() < 0.15
            call["successor"] = pod if itself else random.choice(others)
        if kind == "claim":
            if random.random() < 0.8:
                call["node"] = _HOMES[call["successor"]]
            call["artifact"] = _artifact(self._story.namespace, pod)
            if random.random() < 0.3:
                call["version"] = self._story.version(pod)
        return call

    def tell(self, wish: Wish, way: Way = Way.HEARD) -> None:
        """Make the call; if the answer was lost mostly again, as an agent does."""
        while self._once(wish, way) == 0 and self._random.random() < 0.8:
            way = Way.HEARD

    def _once(self, wish: Wish, way: Way) -> int:
        request = _request(self._story.namespace, wish)
        replicas, until = self._lines.replicas, time.monotonic() + PATIENCE_S
        while True:
            call = {**wish, "client": self._number, **_times("call", -self._story.off_ms)}
            try:
                answer = self._lines.ask(self._random.randrange(replicas), request, way)
            except NotSentError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
            else:
                return self._note(call, answer)

    def _note(self, call: Wish, answer: Answer) -> int:
        call |= {**_times("return", self._story.off_ms), "status": answer.status}
        if answer.status == 200 and call["kind"] != "record":
            told = {name: answer.body[name] for name in _RECORD}
            call["answer"] = {**told, "stopped": answer.body["stopped"] or ""}
            self._story.heard(call, answer.body)
        if answer.status or call["kind"] != "get":
            self._story.calls.append(call)
        return answer.status


def _times(name: str, off_ms: int) -> dict[str, int]:
    return {name: time.monotonic_ns(), f"{name}_ms": time.time_ns() // 1_000_000 + off_ms}


def _artifact(namespace: str, pod: int) -> str:
    return f"{namespace}/p{pod}@20261121T000000Z-00000000"


def _request(namespace: str, call: Wish) -> Request:
    pod = f"/v1/pods/{namespace}/p{call['pod']}"
    return _REQUESTS[call["kind"]](namespace, pod, f"agent-{call['node']}", call)


def _record(namespace: str, _pod: str, agent: str, call: Wish) -> Request:
    artifact = {
        "digest": _DIGEST,
        "pod": "story",
        "pod_uid": f"p{call['pod']}",
        "size": 1000,
        "created_ms": 1,
    }
    held = {"place": "nvme", "node": call["node"], "state": "verified", "size": 10}
    body = {"artifact": artifact, "held": held, "token": call["token"]}
    return Request(agent, "PUT", f"/v1/artifacts/{_artifact(namespace, call['pod'])}", body)


def _stop(_namespace: str, pod: str, agent: str, call: Wish) -> Request:
    name = agent if call["proof"] == "agent" else "controller"
    return Request(name, "POST", f"{pod}/stop", {"proof": call["proof"], "why": "ended"})


def _claim(_namespace: str, pod: str, agent: str, call: Wish) -> Request:
    body = {
        "artifact": call["artifact"],
        "successor": f"p{call['successor']}",
        "node": call["node"],
        "version": call.get("version"),
    }
    return Request(agent, "POST", f"{pod}/claim", body)


_REQUESTS: Mapping[str, Callable[[str, str, str, Wish], Request]] = {
    "get": lambda _, pod, agent, _call: Request(agent, "GET", pod),
    "lease": lambda _, pod, agent, call: Request(
        agent,
        "POST",
        f"{pod}/lease",
        {"seconds": call["lasts_ms"] / 1000, "runs": call["runs"]},
    ),
    "renew": lambda _, pod, agent, call: Request(
        agent,
        "PUT",
        f"{pod}/lease",
        {"seconds": call["lasts_ms"] / 1000, "token": call["token"]},
    ),
    "give_back": lambda _, pod, agent, call: Request(
        agent, "DELETE", f"{pod}/lease?token={call['token']}"
    ),
    "record": _record,
    "stop": _stop,
    "claim": _claim,
    "release": lambda _, pod, agent, call: Request(
        agent, "DELETE", f"{pod}/claim?successor=p{call['successor']}"
    ),
}
