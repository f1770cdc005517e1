"""Random calls at two replicas over one database, some cut off half-way, against what must hold.

The world has a few nodes and pods. Nodes act on what they were told, however long ago: an agent
that was cut off goes on writing with the token it has. After each call the whole database is read
and compared with what came before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import event, select

from registry.schema import ARTIFACTS, COPIES, PODS
from tests.unit.registry.replica import Clock, Replica, name_of, pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.registry.replica import Answer

    Json = dict[str, Any]

NODES = ("n1", "n2", "n3")
UIDS = ("u1", "u2", "u3", "u4")
STATES = ("pending", "verified", "missing")
nodes, uids, numbers = st.sampled_from(NODES), st.sampled_from(UIDS), st.integers(0, 3)


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
        self.tokens: dict[tuple[str, str], list[int]] = {}
        self.before: Mapping[str, Json] = {}
        self.recorded: set[str] = set()
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

    @rule(at=st.integers(0, 1), kill=st.none() | st.integers(0, 9), deaf=st.booleans())
    def go_to(self, at: int, kill: int | None, deaf: bool) -> None:
        """Call that replica; its next call is cut off after so many statements, or its answer
        never arrives."""
        self.at, self.deaf = at, deaf and kill is None
        for one in self.killers:
            one.arm(None)
        self.killers[at].arm(kill)

    @rule(seconds=st.sampled_from((1, 40, 700)))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds * 1000

    @rule(node=nodes, uid=uids)
    def lease(self, node: str, uid: str) -> None:
        known = self._hear(self.replica.lease(node, uid))
        if known is not None and known.status == 200:
            token = known.body["token"]
            assert token > max(self._given(uid), default=0), "a token that is not the newest"
            self.tokens.setdefault((node, uid), []).append(token)

    def _given(self, uid: str) -> list[int]:
        return [one for (_, of), all_ in self.tokens.items() if of == uid for one in all_]

    def _hear(self, answer: Answer) -> Answer | None:
        deaf, self.deaf = self.deaf, False
        return None if deaf or answer.status == 500 else answer

    @rule(node=nodes, uid=uids, number=numbers, newest=st.booleans(), state=st.sampled_from(STATES))
    def record(self, node: str, uid: str, number: int, newest: bool, state: str) -> None:
        had = self.tokens.get((node, uid))
        if not had:
            return
        token, name = had[-1 if newest else 0], name_of(number, uid)
        made = self.replica.record(node, name, token, pod_uid=uid, held={"state": state})
        answer = self._hear(made)
        if answer is not None and answer.status in (200, 201):
            assert token == max(self._given(uid)), "a write with an older token"
            self.recorded.add(f"ns/{name}")
            self.forgotten.discard(f"ns/{name}")

    @rule(node=nodes, uid=uids, number=numbers, state=st.sampled_from(STATES))
    def report(self, node: str, uid: str, number: int, state: str) -> None:
        self.replica.report(node, name_of(number, uid), state)

    @rule(node=nodes, uid=uids, number=numbers, forget=st.sampled_from(("", "", "old")))
    def drop(self, node: str, uid: str, number: int, forget: str) -> None:
        artifact = f"ns/{name_of(number, uid)}"
        had = self._verified(artifact)
        answer = self._hear(self.replica.drop(node, name_of(number, uid), forget=forget))
        if had and not forget:
            assert self._verified(artifact), "the last verified copy was dropped"
        if answer is None or answer.body.get("copies") == 0:
            self.forgotten.add(artifact)

    def _verified(self, artifact: str) -> int:
        verified = COPIES.c.artifact == artifact, COPIES.c.state == "verified"
        with self.replicas[1 - self.at].database.read() as connection:
            return len(connection.execute(select(COPIES).where(*verified)).all())

    @rule(node=nodes, uid=uids)
    def stop(self, node: str, uid: str) -> None:
        self.replica.stop(node, uid)

    @rule(uid=uids)
    def delete(self, uid: str) -> None:
        self.replica.controller("POST", f"{pod(uid)}/stop", {"proof": "deleted", "why": "gone"})

    @rule(node=nodes, uid=uids, number=numbers, successor=uids)
    def claim(self, node: str, uid: str, number: int, successor: str) -> None:
        self.replica.claim(node, uid, name_of(number, uid), successor)

    @rule(uid=uids, successor=uids)
    def release(self, uid: str, successor: str) -> None:
        self.replica.release("n1", uid, successor)

    @invariant()
    def nothing_is_wrong(self) -> None:
        if not hasattr(self, "replicas"):
            return
        with self.replicas[1 - self.at].database.read() as connection:
            pods = {one["uid"]: dict(one) for one in connection.execute(select(PODS)).mappings()}
            found = set(connection.execute(select(ARTIFACTS.c.id)).scalars())
            verified = connection.execute(select(COPIES.c.artifact)).scalars().all()
        assert set(verified) <= found, "a copy of nothing"
        assert self.recorded - self.forgotten <= found, "a lost update"
        for uid, now in pods.items():
            before = self.before.get(uid)
            if before is not None:
                _check_step(before, now, pods)
        for uid in pods:
            alive = [one for one in _line(uid, pods) if _may_run(pods.get(one))]
            assert len(alive) <= 1, f"{alive} all go on from {uid}"
        self.before = pods


def _check_step(before: Json, now: Json, pods: Mapping[str, Json]) -> None:
    assert now["token"] >= before["token"], "a token went back"
    assert now["version"] >= before["version"]
    if before["stopped"]:
        assert now["stopped"], "a proof was lost"
    if before == now:
        return
    assert now["version"] > before["version"], "a change that no version tells"
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
