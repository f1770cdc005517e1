"""Writers' leases, proofs of stopping and claims in the database: one row for each pod."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, select, update

from kybernate.adapters.registry.wire import CopyState
from kybernate.core.artifacts import succession
from kybernate.core.artifacts.succession import PodRecord
from kybernate.errors import ConflictError, NotFoundError, RefusedError
from registry.database import insert_new, unlimited, unsettle
from registry.schema import ARTIFACTS, COPIES, MARKS, PODS, SETTLED

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from kybernate.core.artifacts.succession import Asked
    from registry.database import Database

    Key = tuple[str, str]
    """Namespace and UID of a pod."""

    Change = Callable[[PodRecord, int], PodRecord]


class Pods:
    """Who may write a pod's states, and who continues with them."""

    def __init__(self, database: Database, max_lease_s: float) -> None:
        self._database = database
        self._max_lease_ms = int(max_lease_s * 1000)

    def get(self, pod: Key) -> PodRecord:
        """What is known of the pod. Raises NotFoundError."""
        with self._database.read() as connection:
            found = fetch(connection, pod)
        if found is None:
            raise NotFoundError(
                f"nothing is known of pod {'/'.join(pod)}: nobody has written for it"
            )
        return found

    def lease(self, pod: Key, node: str, seconds: float, *, runs: bool = True) -> PodRecord:
        """The node becomes the pod's writer; `runs`: since it runs there. Raises ConflictError."""

        return self._change(
            pod,
            lambda known, now: succession.lease(
                known, node, now + self._lasting(seconds), now, runs=runs
            ),
        )

    def renew(self, pod: Key, node: str, token: int, seconds: float) -> PodRecord:
        """The lease continues. Raises ConflictError."""
        return self._change(
            pod,
            lambda known, now: succession.renew(known, node, token, now + self._lasting(seconds)),
        )

    def give_back(self, pod: Key, node: str, token: int) -> PodRecord:
        """The lease ends. Raises ConflictError."""
        return self._change(pod, lambda known, _now: succession.give_back(known, node, token))

    def stop(self, pod: Key, proof: str, by: str, why: str) -> PodRecord:
        """The pod has stopped. Raises RefusedError."""
        return self._change(pod, lambda known, _now: succession.stop(known, proof, by, why))

    def claim(self, pod: Key, asked: Asked) -> PodRecord:
        """Somebody continues with the pod's state.

        A pod that claims itself may begin again, too: what it left may be gone by then. Raises
        ConflictError, also for an artifact that is not the pod's newest, NotFoundError for one that
        isn't known, RefusedError for one of another pod.
        """
        with self._database.write() as connection:
            known, after = _locked_both(connection, pod, asked.successor)
            now = self._database.now(connection)
            taken, there = succession.claim(known, after, asked, now)
            if taken is not known:
                itself = asked.successor == known.uid
                _check_artifact(connection, known, asked.artifact, may_be_gone=itself)
                succession.see_newest(known, asked, _newest(connection, known))
                if not itself:
                    _check_other_claims(connection, known, asked.successor)
            if known is not after:
                save(connection, after, there)
            return save(connection, known, taken)

    def release(self, pod: Key, successor: str, by: str = "") -> PodRecord:
        """The claim ends, with the proof that its successor stopped, or by the word of the agent of
        its node, `by`. Raises ConflictError, RefusedError."""
        with self._database.write() as connection:
            known, after = _locked_both(connection, pod, successor)
            free, ended = succession.release(known, after, by)
            save(connection, after, ended)
            return save(connection, known, free)

    def settle(self, pod: Key) -> PodRecord:
        """All claims on this pod are known."""
        return self._change(pod, lambda known, _now: succession.settle(known))

    def settle_all(self) -> int:
        """All claims on all pods are known, and on pods to come; gives how many changed."""
        with self._database.write() as connection:
            now = str(self._database.now(connection))
            connection.execute(MARKS.delete().where(MARKS.c.name == SETTLED))
            connection.execute(MARKS.insert().values(name=SETTLED, value=now))
            unlimited(connection)
            unsettled = update(PODS).where(PODS.c.settled.is_(False))
            return connection.execute(
                unsettled.values(settled=True, version=PODS.c.version + 1)
            ).rowcount

    def unsettle_all(self) -> int:
        """Claims may exist that aren't here, on any pod; gives how many pods there are."""
        with self._database.write() as connection:
            return unsettle(connection)

    def settled(self) -> bool:
        """Whether claims on pods that are new here are known."""
        with self._database.read() as connection:
            return _all_settled(connection)

    def _change(self, pod: Key, change: Change) -> PodRecord:
        with self._database.write() as connection:
            known = _locked(connection, pod)
            return save(connection, known, change(known, self._database.now(connection)))

    def _lasting(self, seconds: float) -> int:
        return min(int(seconds * 1000), self._max_lease_ms)


def fetch(connection: Connection, pod: Key, *, lock: bool = False) -> PodRecord | None:
    """The pod's record, or None; with `lock` nobody else changes it until the transaction ends."""
    query = select(PODS).where(_of(pod))
    rows = connection.execute(query.with_for_update() if lock else query).mappings()
    found = rows.one_or_none()
    return None if found is None else PodRecord(**found)


def add(connection: Connection, pods: list[Key], *, settled: bool) -> None:
    """Records of pods that are new here."""
    insert_new(connection, PODS, [asdict(PodRecord(*pod, settled=settled)) for pod in pods])


def _locked(connection: Connection, pod: Key) -> PodRecord:
    found = fetch(connection, pod, lock=True)
    if found is None:
        add(connection, [pod], settled=_all_settled(connection))
        found = fetch(connection, pod, lock=True)
    if found is None:
        raise NotFoundError(f"pod {'/'.join(pod)} is not known")
    return found


def _locked_both(connection: Connection, pod: Key, successor: str) -> tuple[PodRecord, PodRecord]:
    # In one order for all, so that no two of these wait for each other.
    keys = sorted({pod, (pod[0], successor)})
    known = {key[1]: _locked(connection, key) for key in keys}
    return known[pod[1]], known[successor]


def save(connection: Connection, before: PodRecord, after: PodRecord) -> PodRecord:
    """The pod's record as it is afterwards; its row is locked by who calls."""
    if after is not before:
        values = asdict(after)
        connection.execute(update(PODS).where(_of((after.namespace, after.uid))).values(**values))
    return after


def _of(pod: Key) -> Any:
    return and_(PODS.c.namespace == pod[0], PODS.c.uid == pod[1])


def _all_settled(connection: Connection) -> bool:
    found = connection.execute(select(MARKS.c.value).where(MARKS.c.name == SETTLED))
    return found.scalar_one_or_none() is not None


def _check_artifact(
    connection: Connection, pod: PodRecord, artifact: str, *, may_be_gone: bool
) -> None:
    query = select(ARTIFACTS.c.namespace, ARTIFACTS.c.pod_uid).where(ARTIFACTS.c.id == artifact)
    found = connection.execute(query).one_or_none()
    if found is None:
        if may_be_gone:
            return
        raise NotFoundError(f"artifact {artifact} is not known; record it first")
    if (found.namespace, found.pod_uid) != (pod.namespace, pod.uid):
        raise RefusedError(
            f"{artifact} is a state of pod {found.namespace}/{found.pod_uid}, not of {pod}"
        )


def _newest(connection: Connection, pod: PodRecord) -> str:
    """The pod's newest artifact that has a verified copy; empty if there is none."""
    verified = select(COPIES.c.artifact).where(
        COPIES.c.artifact == ARTIFACTS.c.id, COPIES.c.state == CopyState.VERIFIED
    )
    own = ARTIFACTS.c.namespace == pod.namespace, ARTIFACTS.c.pod_uid == pod.uid
    query = select(ARTIFACTS.c.id).where(*own, verified.exists())
    newest = query.order_by(ARTIFACTS.c.created_ms.desc(), ARTIFACTS.c.id.desc()).limit(1)
    return str(connection.execute(newest).scalar_one_or_none() or "")


def _check_other_claims(connection: Connection, pod: PodRecord, successor: str) -> None:
    claimed = and_(
        PODS.c.namespace == pod.namespace, PODS.c.successor == successor, PODS.c.uid != pod.uid
    )
    other = connection.execute(select(PODS.c.uid).where(claimed).limit(1)).scalar_one_or_none()
    if other is not None:
        raise ConflictError(
            f"pod {successor} continues with the state of pod {other} already; a pod has one state"
        )
