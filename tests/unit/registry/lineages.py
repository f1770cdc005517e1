"""Random calls at two replicas over one database, some cut off half-way, against what must hold.

The world has a few nodes and pods. Nodes act on what they were told, however long ago: an agent
that was cut off continues writing with the token it has. After each call the whole database is read
and compared with what came before.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sqlalchemy import event, select

from registry.schema import ARTIFACTS, COPIES, PODS
from tests.unit.registry.replica import STORE, Clock, Replica, name_of, pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.registry.replica import Answer

    Json = dict[str, Any]

NODES = ("n1", "n2")
UIDS = ("u1", "u2", "u3", "u4", "u5")
PER_POD = 2
"""Artifacts that a pod may have."""

STATES = ("pending", "verified", "missing")
IN_STORE = {"place": "object", "node": "", "store": STORE}
WEIGHTS = {
    "go_to": 3,
    "time_passes": 2,
    "lease": 2,
    "record": 3,
    "stop": 1,
    "delete": 2,
    "hand_over": 4,
    "claim": 3,
    "release": 3,
    "report": 3,
    "drop": 4,
    "outgrow": 4,
}


class KilledError(Exception):
    """The replica died here."""


class Killer:
    """Ends a replica's call before one of its statements, or its commit."""

    def __init__(self, replica: Replica) -> None:
        self._left: int | None = None
        engine = replica.database._engine
        event.listen(engine, "before_cursor_execute", self._step)
        event.listen(engine, "commit", self._step)

    def arm(self, statements: int | None) -> None:
        self._left = statements

    def _step(self, *_: object, **__: object) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                raise KilledError


class Lineages(RuleBasedStateMachine):
    """Subclasses say where the database is."""

    def url(self) -> str:
        raise NotImplementedError

    def finish(self) -> None:
        """Remove the database."""

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.replicas = [Replica(self.url(), self.clock) for _ in range(2)]
        self.killers = [Killer(one) for one in self.replicas]
        self.replicas[0].controller("POST", "/v1/settle", {"why": "new"})
        self.at, self.deaf = 0, False
        self.tokens: list[tuple[str, int, str]] = []
        """Pod, token and node, as they were heard of."""
        self.before: Mapping[str, Json] = {}
        self.claims: list[tuple[str, str]] = []
        self.recorded: dict[str, str] = {}
        """Pod by artifact."""
        self.forgotten: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "replicas"):
            for one in self.replicas:
                one.close()
            self.finish()

    @property
    def replica(self) -> Replica:
        """The one that is called next."""
        return self.replicas[self.at]

    @rule(seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8))
    def acts(self, seeds: list[int]) -> None:
        for seed in seeds:
            self.random = Random(seed)
            (act,) = self.random.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
            getattr(self, f"_{act}")()
            self._check()

    def _go_to(self) -> None:
        """Call that replica; its next calls are cut off after so many statements, or the next
        answer never arrives."""
        self.at, way = self.random.randrange(2), self.random.randrange(4)
        self.deaf = way == 0
        for one in self.killers:
            one.arm(None)
        self.killers[self.at].arm(self.random.randrange(10) if way == 1 else None)

    def _time_passes(self) -> None:
        self.clock.now += self.random.choice((1, 40, 700)) * 1000

    def _lease(self, node: str = "", uid: str = "") -> None:
        node, uid = node or self.random.choice(NODES), uid or self.random.choice(UIDS)
        runs = self.random.random() < 0.6
        known = self._hear(self.replica.lease(node, uid, runs=runs))
        if known is not None and known.status == 200:
            token = known.body["token"]
            assert token > max(self._given(uid), default=0), "a token that is not the newest"
            self.tokens.append((uid, token, node))

    def _given(self, uid: str) -> list[int]:
        return [token for of, token, _ in self.tokens if of == uid]

    def _hear(self, answer: Answer) -> Answer | None:
        deaf, self.deaf = self.deaf, False
        return None if deaf or answer.status == 500 else answer

    def _record(self, uid: str = "") -> None:
        """With any token that a node ever got, be it an old one."""
        had = [one for one in self.tokens if not uid or one[0] == uid]
        if not had:
            return
        uid, token, node = had[-1] if self.random.random() < 0.5 else self.random.choice(had)
        name = name_of(self.random.randrange(PER_POD), uid)
        held = {"state": self.random.choice(STATES), **self._somewhere()}
        facts = {"person_hold": "object"} if "store" in held else {}
        made = self.replica.record(node, name, token, pod_uid=uid, held=held, facts=facts)
        answer = self._hear(made)
        if answer is not None and answer.status in (200, 201):
            assert token == max(self._given(uid)), "a write with an older token"
            self.recorded[f"ns/{name}"] = uid
            self.forgotten.discard(f"ns/{name}")

    def _somewhere(self) -> dict[str, str]:
        """In the object store, or on the node's own disk."""
        return IN_STORE if self.random.random() < 0.4 else {}

    def _stop(self, node: str = "", uid: str = "") -> None:
        self.replica.stop(node or self.random.choice(NODES), uid or self.random.choice(UIDS))

    def _delete(self) -> None:
        uid = self.random.choice([*(after for _, after in self.claims), *UIDS])
        self.replica.controller("POST", f"{pod(uid)}/stop", {"proof": "deleted", "why": "gone"})

    def _hand_over(self) -> None:
        """A pod's whole way from its node to a successor."""
        node, uid = self.random.choice(NODES), self.random.choice(UIDS)
        self._lease(node, uid)
        self._check()
        self._record(uid)
        self._check()
        self._stop(node, uid)
        self._check()
        own = [one for one, of in self.recorded.items() if of == uid]
        if own:
            self._claim(self.random.choice(own))
            self._check()
            self._outgrow(uid)

    def _claim(self, artifact: str = "") -> None:
        artifact = artifact or self._any_artifact()
        if artifact:
            node, successor = self.random.choice(NODES), self.random.choice(UIDS)
            uid, name = self.recorded[artifact], artifact.partition("/")[2]
            held, newest = self._claim_of(uid), self._newest(uid)
            if self.replica.claim(node, uid, name, successor).status == 200:
                self.claims.append((uid, successor))
                again = held == (successor, node, artifact)
                assert again or successor == uid or newest in ("", artifact), "an older state"

    def _release(self) -> None:
        if self.claims:
            self.replica.release(self.random.choice(NODES), *self.random.choice(self.claims))

    def _report(self) -> None:
        artifact = self._any_artifact()
        if artifact:
            node, state = self.random.choice(NODES), self.random.choice(STATES)
            where = self._somewhere()
            self.replica.report(node, artifact.partition("/")[2], state, **where)

    def _drop(self) -> None:
        if artifact := self._any_artifact():
            forget = self.random.choice(("", "", "", "old"))
            self._drops(self.random.choice(NODES), artifact, forget, self._somewhere())

    def _outgrow(self, uid: str = "") -> None:
        """A successor's node needs no more what it has claimed."""
        _, node, artifact = self._claim_of(uid or self.random.choice(UIDS)) or ("", "", "")
        if artifact in self.recorded:
            self._drops(node, artifact, "it has continued", IN_STORE)

    def _drops(self, node: str, artifact: str, forget: str, where: Mapping[str, str]) -> None:
        had, kept, own = self._verified(artifact), self._kept(artifact), self._own(artifact)
        gone = self.replica.drop(node, artifact.partition("/")[2], forget=forget, **where)
        answer = self._hear(gone)
        assert not kept or node in own or self._kept(artifact), "what people keep was dropped"
        if had and not forget:
            assert self._verified(artifact), "the last verified copy was dropped"
        if answer is None or answer.body.get("copies") == 0:
            self.forgotten.add(artifact)

    def _kept(self, artifact: str) -> bool:
        """Whether people keep the copy in the object store, and there is one."""
        there = COPIES.c.artifact == artifact, COPIES.c.place == "object"
        with self.replicas[1 - self.at].database.read() as connection:
            facts = select(ARTIFACTS.c.facts).where(ARTIFACTS.c.id == artifact)
            told = connection.execute(facts).scalar_one_or_none() or ""
            copy = connection.execute(select(COPIES).where(*there)).first()
        return '"person_hold":"object"' in told and copy is not None

    def _own(self, artifact: str) -> set[str]:
        """The nodes that know what people keep of it."""
        uid = self.recorded[artifact]
        with self.replicas[1 - self.at].database.read() as connection:
            query = select(PODS.c.node, PODS.c.holder).where(PODS.c.uid == uid)
            return set(connection.execute(query).one_or_none() or ())

    def _claim_of(self, uid: str) -> tuple[str, ...]:
        columns = PODS.c.successor, PODS.c.successor_node, PODS.c.artifact
        with self.replicas[1 - self.at].database.read() as connection:
            found = connection.execute(select(*columns).where(PODS.c.uid == uid)).one_or_none()
        return tuple(found or ())

    def _newest(self, uid: str) -> str:
        with self.replicas[1 - self.at].database.read() as connection:
            own = select(ARTIFACTS.c.id).where(ARTIFACTS.c.pod_uid == uid)
            found = connection.execute(own).scalars().all()
        return max((one for one in found if self._verified(one)), default="")

    def _any_artifact(self) -> str:
        return self.random.choice(sorted(self.recorded)) if self.recorded else ""

    def _verified(self, artifact: str) -> int:
        verified = COPIES.c.artifact == artifact, COPIES.c.state == "verified"
        with self.replicas[1 - self.at].database.read() as connection:
            return len(connection.execute(select(COPIES).where(*verified)).all())

    def _check(self) -> None:
        with self.replicas[1 - self.at].database.read() as connection:
            pods = {one["uid"]: dict(one) for one in connection.execute(select(PODS)).mappings()}
            found = set(connection.execute(select(ARTIFACTS.c.id)).scalars())
            verified = connection.execute(select(COPIES.c.artifact)).scalars().all()
        assert set(verified) <= found, "a copy of nothing"
        assert set(self.recorded) - self.forgotten <= found, "a lost update"
        for uid, now in pods.items():
            before = self.before.get(uid)
            if before is not None:
                _check_step(before, now, pods)
        # Whoever goes on from its own state still has its predecessor's claim.
        heirs = [
            one["successor"] for one in pods.values() if one["successor"] not in ("", one["uid"])
        ]
        assert len(set(heirs)) == len(heirs), "a pod continues from two"
        for uid in pods:
            alive = [one for one in _line(uid, pods) if _may_run(pods.get(one))]
            assert len(alive) <= 1, f"{alive} all continue from {uid}"
        self.before = pods


def _check_step(before: Json, now: Json, pods: Mapping[str, Json]) -> None:
    assert now["token"] >= before["token"], "a token went back"
    assert now["version"] >= before["version"]
    assert before["node"] in ("", now["node"]), "a pod changed its node"
    if before["stopped"]:
        assert now["stopped"], "a proof was lost"
    if before == now:
        return
    assert now["version"] > before["version"], "a change that no version tells"
    if now["successor"] == before["successor"] and before["artifact"] and not now["artifact"]:
        assert now["successor_node"] != now["node"], "its own node let go of it"
        assert now["successor"] != now["uid"], "of what it continues with itself"
    if before["successor"] and now["successor"] != before["successor"]:
        assert not now["successor"], "one successor in another's place"
        after = pods[before["successor"]]
        assert after["stopped"], "a claim ended without proof"


def _line(uid: str, pods: Mapping[str, Json]) -> list[str]:
    """The pod, and everybody who goes on from it."""
    line = [uid]
    while (now := pods.get(line[-1])) and now["successor"] and now["successor"] not in line:
        line.append(now["successor"])
    return line


def _may_run(known: Json | None) -> bool:
    """As far as the registry knows; of who never wrote nobody knows that it stopped."""
    if known is None:
        return True
    return not known["stopped"] or known["successor"] == known["uid"]
