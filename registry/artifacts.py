"""Artifacts and their copies in the database."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import BigInteger, Text, and_, bindparam, delete, func, select, tuple_, update

from kybernate.adapters.registry.wire import CONTENT, PERSON_HOLD, CopyState
from kybernate.core.artifacts import succession
from kybernate.errors import ConflictError, NotFoundError, RefusedError
from kybernate.types import Tier
from registry.database import insert_new
from registry.pods import fetch, save
from registry.schema import ARTIFACTS, COPIES, WRITERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection, CursorResult, Row, Select

    from kybernate.adapters.registry.wire import (
        Copy,
        Described,
        Drop,
        Filter,
        Latest,
        Recording,
        Spot,
    )
    from registry.database import Database

    Json = dict[str, Any]

_LISTED = [column for column in ARTIFACTS.c if column.name != "facts"]
_COPY = ("place", "node", "store", "state", "size", "told_ms")
_OF_COPY = [COPIES.c[name].label(f"copy_{name}") for name in _COPY]
_WHOLE = select(ARTIFACTS, *_OF_COPY).outerjoin(COPIES, COPIES.c.artifact == ARTIFACTS.c.id)
_BY_ID = _WHOLE.where(ARTIFACTS.c.id == bindparam("wanted"))
_BY_COPY = ("node", "place", "state")
_BY_ARTIFACT = ("namespace", "model", "pod", "pod_uid")
_SPOT = ("artifact", "place", "node", "store")


NOT_TOLD = 0
"""When nobody has said of a copy that it is there."""


class Artifacts:
    """What exists, and where."""

    def __init__(
        self,
        database: Database,
        believed: Callable[[str, int], bool] = lambda _node, _told_ms: True,
    ) -> None:
        """`believed`: whether what a node's agent told then counts."""
        self._database = database
        self._believed = believed

    def record(self, artifact: str, node: str, recording: Recording) -> tuple[Json, bool]:
        """A new artifact with its first copy, by the writer with the newest token; of one that is
        known, what wasn't known of it until now.

        Gives the entry, and whether it is new. Raises ConflictError for another token, or another
        artifact or content of this name.
        """
        said, namespace = recording.artifact, artifact.partition("/")[0]
        with self._database.write() as connection:
            pod = fetch(connection, (namespace, said.pod_uid), lock=True)
            if pod is None:
                raise ConflictError(
                    f"no lease was taken for pod {namespace}/{said.pod_uid}; take one first"
                )
            succession.check(pod, node, recording.token)
            now = self._database.now(connection)
            new = insert_new(connection, ARTIFACTS, [row(artifact, said, now)]) == 1
            found = _locked(connection, artifact, said.digest)
            if found.pod_uid != said.pod_uid:
                raise ConflictError(f"{artifact} is recorded as a state of pod {found.pod_uid}")
            _learn(connection, found, said)
            _wrote(connection, artifact, node, recording.token, now)
            _put_copy(connection, artifact, recording.held, said.created_ms, now)
            return _one(connection, artifact), new

    def report(self, artifact: str, node: str, digest: str, held: Copy) -> Json:
        """What became of a copy, by the word of the node's agent. Raises NotFoundError,
        ConflictError, RefusedError if the node may not say it."""
        with self._database.write() as connection:
            found = _locked(connection, artifact, digest)
            _see_may_speak(connection, found, node, held.store)
            refused = _why_handed_on(connection, found, node, held.store)
            refused = refused or _why_kept(connection, found, node, held.store)
            if refused and held.state is CopyState.MISSING:
                raise RefusedError(refused)
            now = self._database.now(connection)
            if node and held.store:
                _packed(connection, found, node, now)
            _put_copy(connection, artifact, held, found.created_ms, now)
            return _one(connection, artifact)

    def drop(self, artifact: str, node: str, which: Drop) -> Json:
        """Let a copy go: from now on nobody counts on it, and its bytes may be deleted. `node`:
        whose agent says so, empty for others.

        With its last copy the artifact is forgotten. From a store no other node than the pod's own
        drops what people keep there: its successor's lets go of it. Raises ConflictError for the
        last verified copy unless `forget` says why nobody needs it, NotFoundError if the artifact
        isn't known, RefusedError if the node may not say it.
        """
        with self._database.write() as connection:
            pod = _pod_of(connection, artifact, lock=bool(node and which.store))
            found = _locked(connection, artifact)
            _see_may_speak(connection, found, node, which.store)
            refused = _why_handed_on(connection, found, node, which.store)
            if not refused:
                return _drop(connection, found, node, which, pod)
            if which.forget and succession.is_own(pod, node):
                # Its people want it no more: it goes with its successor's need of it.
                _keep(connection, found, "")
        raise RefusedError(refused)

    def signers(self, artifact: str) -> Json:
        """Whose signature is believed of it, and the newest token that one of them had. Raises
        NotFoundError."""
        with self._database.read() as connection:
            query = select(ARTIFACTS.c.digest, ARTIFACTS.c.recorded_ms)
            known = connection.execute(query.where(ARTIFACTS.c.id == artifact)).one_or_none()
            if known is None:
                raise NotFoundError(f"artifact {artifact} is not known")
            wrote = select(WRITERS).where(WRITERS.c.artifact == artifact)
            found = connection.execute(wrote).all()
        told = {one.node: one.told_ms or known.recorded_ms for one in found}
        nodes = sorted(node for node, at in told.items() if self._believed(node, at))
        token = max((one.token for one in found), default=0)
        return {"digest": known.digest, "nodes": nodes, "token": token}

    def get(self, artifact: str) -> Json:
        """One artifact. Raises NotFoundError."""
        with self._database.read() as connection:
            return _one(connection, artifact)

    def pod_of(self, artifact: str) -> str:
        """The UID of the pod whose state it is. Raises NotFoundError."""
        query = select(ARTIFACTS.c.pod_uid).where(ARTIFACTS.c.id == artifact)
        with self._database.read() as connection:
            found = connection.execute(query).scalar_one_or_none()
        if found is None:
            raise NotFoundError(f"artifact {artifact} is not known; record it first")
        return str(found)

    def latest(self, wanted: Latest) -> Json:
        """The newest artifact of a pod or a model. Raises NotFoundError."""
        query = select(ARTIFACTS.c.id).where(ARTIFACTS.c.namespace == wanted.namespace)
        for name in ("pod", "pod_uid", "model"):
            value = getattr(wanted, name)
            if value is not None:
                query = query.where(ARTIFACTS.c[name] == value)
        if not wanted.any:
            verified = select(COPIES.c.artifact).where(
                COPIES.c.artifact == ARTIFACTS.c.id, COPIES.c.state == CopyState.VERIFIED
            )
            query = query.where(verified.exists())
        newest = query.order_by(ARTIFACTS.c.created_ms.desc(), ARTIFACTS.c.id.desc()).limit(1)
        whole = _WHOLE.where(ARTIFACTS.c.id == newest.scalar_subquery())
        with self._database.read() as connection:
            found = _gathered(connection.execute(whole))
        if not found:
            copy = "" if wanted.any else " with a verified copy"
            raise NotFoundError(f"nothing of that name in {wanted.namespace} is saved{copy}")
        return found[0]

    def page(self, wanted: Filter) -> Json:
        """Artifacts, newest first. as a Page has them."""
        given = {
            name: str(value)
            for name in (*_BY_COPY, *_BY_ARTIFACT)
            if (value := getattr(wanted, name)) is not None
        }
        values: Json = {**given, "most": wanted.limit + 1}
        if wanted.newest is not None:
            values["newest"] = wanted.newest
        query = _page_query(
            tuple(given), after=wanted.after is not None, newest=wanted.newest is not None
        )
        if wanted.after is not None:
            values["before_ms"], values["before_id"] = _read_cursor(wanted.after)
        with self._database.read() as connection:
            items = _gathered(connection.execute(query, values))
        more = len(items) > wanted.limit
        items = items[: wanted.limit]
        return {"items": items, "next": _cursor(items[-1]) if more else None}

    def counts(self) -> list[tuple[str, str, int]]:
        """How many copies there are, by place and state."""
        query = select(COPIES.c.place, COPIES.c.state, func.count()).group_by(
            COPIES.c.place, COPIES.c.state
        )
        with self._database.read() as connection:
            return [(one[0], one[1], one[2]) for one in connection.execute(query)]


def row(artifact: str, said: Described, now: int) -> Json:
    """A row of ARTIFACTS."""
    values = said.model_dump(mode="python")
    values["facts"] = _facts(said.facts)
    return {
        "id": artifact,
        "namespace": artifact.partition("/")[0],
        "recorded_ms": now,
        **values,
    }


def is_kept(facts: str) -> bool:
    """By an artifact's facts, whether people keep its copy in an object store."""
    return bool(orjson.loads(facts).get(PERSON_HOLD) == Tier.OBJECT)


def copy_row(artifact: str, spot: Spot, held: tuple[str, int], times: tuple[int, int]) -> Json:
    """A row of COPIES; `held` are its state and size, `times` when the artifact was created, and
    when this was told."""
    return {
        "artifact": artifact,
        "place": str(spot.place),
        "node": spot.node,
        "store": spot.store,
        "state": held[0],
        "size": held[1],
        "created_ms": times[0],
        "told_ms": times[1],
    }


def _locked(connection: Connection, artifact: str, digest: str = "") -> Row[Any]:
    """The artifact's row, which nobody else changes or removes until the transaction ends."""
    query = select(ARTIFACTS).where(ARTIFACTS.c.id == artifact).with_for_update()
    found = connection.execute(query).one_or_none()
    if found is None:
        raise NotFoundError(f"artifact {artifact} is not known; record it first")
    if digest and found.digest != digest:
        raise ConflictError(
            f"another artifact is recorded as {artifact}, with digest {found.digest}"
        )
    return found


def _learn(connection: Connection, found: Row[Any], said: Described) -> None:
    """What its files hold is recorded once, and stays; also where it wasn't known until now, as of
    what 0.2.0 has recorded. That people keep it is known from when its node says so. Raises
    ConflictError."""
    facts = orjson.loads(found.facts)
    before, told = (str(one.get(CONTENT) or "") for one in (facts, said.facts))
    if before and told and before != told:
        raise ConflictError(f"{found.id} is recorded with other files: content {before}")
    new = {name: said.facts[name] for name in (CONTENT, PERSON_HOLD) if said.facts.get(name)}
    _change_facts(connection, found, {**facts, **new})


def _keep(connection: Connection, found: Row[Any], tier: str) -> None:
    """That people keep its copy in this tier, or, if empty, no more."""
    _change_facts(connection, found, {**orjson.loads(found.facts), PERSON_HOLD: tier})


def _change_facts(connection: Connection, found: Row[Any], facts: Json) -> None:
    if (changed := _facts(facts)) != found.facts:
        query = update(ARTIFACTS).where(ARTIFACTS.c.id == found.id).values(facts=changed)
        connection.execute(query)


def _pod_of(connection: Connection, artifact: str, *, lock: bool) -> succession.PodRecord:
    """The pod whose state it is; `lock`: its row is to be changed, and is locked before the
    artifact's, as `record` does it."""
    query = select(ARTIFACTS.c.namespace, ARTIFACTS.c.pod_uid).where(ARTIFACTS.c.id == artifact)
    found = connection.execute(query).one_or_none()
    if found is None:
        raise NotFoundError(f"artifact {artifact} is not known; record it first")
    key = (found.namespace, found.pod_uid)
    return fetch(connection, key, lock=lock) or succession.PodRecord(*key)


def _drop(
    connection: Connection, found: Row[Any], node: str, which: Drop, pod: succession.PodRecord
) -> Json:
    """As `Artifacts.drop`, by who may."""
    artifact = found.id
    copies = connection.execute(select(COPIES).where(COPIES.c.artifact == artifact)).all()
    spot = (which.place, which.node, which.store)
    dropped = [one for one in copies if (one.place, one.node, one.store) == spot]
    stays = which.store and is_kept(found.facts)
    if node and stays and not succession.is_own(pod, node):
        if dropped and which.forget:
            save(connection, pod, succession.let_go(pod, node, artifact))
        return {"dropped": False, "copies": len(copies)}
    others = [one for one in copies if one not in dropped]
    if dropped and not which.forget:
        _check_not_last(artifact, dropped[0], others, pod)
    if dropped:
        connection.execute(delete(COPIES).where(_at(artifact, *spot)))
    if not others:
        connection.execute(delete(ARTIFACTS).where(ARTIFACTS.c.id == artifact))
    return {"dropped": bool(dropped), "copies": len(others)}


def _facts(facts: Json) -> str:
    return orjson.dumps(facts, option=orjson.OPT_SORT_KEYS).decode()


def _see_may_speak(connection: Connection, found: Row[Any], node: str, store: str) -> None:
    """Of its own places each agent says what is there; of an object store those alone that have to
    do with the pod, since by a missing copy an older state would be taken for the newest."""
    pod = fetch(connection, (found.namespace, found.pod_uid))
    if node and store and pod is not None and not succession.may_speak(pod, node):
        raise RefusedError(
            f"pod {pod} is not node {node}'s: another node's agent says what of {found.id} is in "
            f"{store}"
        )


def _why_handed_on(connection: Connection, found: Row[Any], node: str, store: str) -> str:
    """Why the node may not let it go, if so: what lies in a store is its successor's alone to let
    go, from the claim on."""
    pod = fetch(connection, (found.namespace, found.pod_uid))
    if node and store and pod is not None and succession.handed_on(pod, node, found.id):
        return (
            f"pod {pod.successor} on node {pod.successor_node} continues with {found.id}: node "
            f"{node} lets nothing of it go in {store} any more"
        )
    return ""


def _why_kept(connection: Connection, found: Row[Any], node: str, store: str) -> str:
    """Why the node may not say that it is missing, if so: of what people keep in a store its pod's
    own node alone says so, whoever has claimed it."""
    pod = fetch(connection, (found.namespace, found.pod_uid))
    own = pod is not None and succession.is_own(pod, node)
    if node and store and not own and is_kept(found.facts):
        return (
            f"people keep {found.id} in {store}: node {node}, where its pod never was, doesn't say "
            "that it is missing"
        )
    return ""


def _wrote(connection: Connection, artifact: str, node: str, token: int, now: int) -> None:
    new = {"artifact": artifact, "node": node, "token": token, "told_ms": now}
    insert_new(connection, WRITERS, [new])


def _packed(connection: Connection, found: Row[Any], node: str, now: int) -> None:
    """Who packs a pod's state into a store signs it there, and may: it is that pod's node, or its
    successor's."""
    pod = fetch(connection, (found.namespace, found.pod_uid))
    if pod is not None and node in (pod.node, pod.holder, pod.successor_node):
        _wrote(connection, found.id, node, pod.token, now)


def _put_copy(connection: Connection, artifact: str, held: Copy, created: int, now: int) -> None:
    new = copy_row(artifact, held, (str(held.state), held.size), (created, now))
    if insert_new(connection, COPIES, [new]):
        return
    at = _at(artifact, held.place, held.node, held.store)
    if held.state is CopyState.PENDING:
        before = connection.execute(select(COPIES.c.state).where(at)).scalar_one()
        if before == CopyState.VERIFIED:
            raise ConflictError(
                f"the copy of {artifact} in {held.place} is verified; report it missing if it is "
                "gone, or drop it"
            )
    values = {name: new[name] for name in ("state", "size", "told_ms")}
    connection.execute(update(COPIES).where(at).values(**values))


def _check_not_last(
    artifact: str, dropped: Row[Any], others: Sequence[Row[Any]], pod: succession.PodRecord
) -> None:
    """`pod`: the one whose state it is. A copy that a TierPlacement wants on another node may go at
    any time, and that it is there is that node's word alone."""
    if dropped.state != CopyState.VERIFIED:
        return
    lasting = (
        one for one in others if one.store or not one.node or succession.may_speak(pod, one.node)
    )
    # Of what a rebuild found, nobody has said since that it was read back.
    if not any(one.state == CopyState.VERIFIED and one.told_ms for one in lasting):
        raise ConflictError(
            f"this is the last verified copy of {artifact}: verify another first, or say in "
            "`forget` why nobody needs it"
        )


def _at(artifact: str, place: str, node: str, store: str) -> Any:
    wanted = (artifact, str(place), node, store)
    return and_(*(COPIES.c[name] == value for name, value in zip(_SPOT, wanted, strict=True)))


def _one(connection: Connection, artifact: str) -> Json:
    found = _gathered(connection.execute(_BY_ID, {"wanted": artifact}))
    if not found:
        raise NotFoundError(f"artifact {artifact} is not known")
    return found[0]


def _gathered(found: CursorResult[Any]) -> list[Json]:
    """Entries from rows of an artifact with one copy each; those of an artifact follow another."""
    # Not its own kind of text, which orjson doesn't take for a key.
    names = [str(name) for name in found.keys()][: -len(_COPY)]  # noqa: SIM118 - it is no mapping
    entries: list[Json] = []
    for one in found.all():
        if not entries or entries[-1]["id"] != one[0]:
            entry = dict(zip(names, one, strict=False))
            entry["facts"] = orjson.loads(entry.get("facts", "{}"))
            entry["copies"] = []
            entries.append(entry)
        copy = one[-len(_COPY) :]
        if copy[0] is not None:
            entries[-1]["copies"].append(dict(zip(_COPY, copy, strict=True)))
    for entry in entries:
        if len(entry["copies"]) > 1:
            entry["copies"].sort(key=lambda copy: (copy["place"], copy["node"], copy["store"]))
    return entries


@functools.cache
def _page_query(given: tuple[str, ...], *, after: bool, newest: bool) -> Select[Any]:
    """A page's artifacts and one more, with their copies; made once for each kind of page."""
    table = _ranked() if newest else COPIES if set(given) & set(_BY_COPY) else ARTIFACTS
    created, id_ = table.c.created_ms, table.c.artifact if table is COPIES else table.c.id
    keys = select(created.label("created_ms"), id_.label("id"))
    if table is COPIES:
        keys = keys.distinct()
        if set(given) & set(_BY_ARTIFACT):
            keys = keys.join(ARTIFACTS, id_ == ARTIFACTS.c.id)
    for name in given:
        column = (COPIES if name in _BY_COPY else ARTIFACTS).c[name]
        keys = keys.where(column == bindparam(name))
    if newest:
        keys = keys.where(table.c.rank <= bindparam("newest"))
    if after:
        before = bindparam("before_ms", type_=BigInteger), bindparam("before_id", type_=Text)
        keys = keys.where(tuple_(created, id_) < tuple_(*before))
    page = keys.order_by(created.desc(), id_.desc()).limit(bindparam("most")).subquery()
    return (
        select(*_LISTED, *_OF_COPY)
        .select_from(page.join(ARTIFACTS, ARTIFACTS.c.id == page.c.id))
        .outerjoin(COPIES, COPIES.c.artifact == ARTIFACTS.c.id)
        .order_by(page.c.created_ms.desc(), page.c.id.desc())
    )


def _ranked() -> Any:
    """Artifacts, numbered in their namespaces from the newest one on."""
    columns = ARTIFACTS.c
    order = columns.created_ms.desc(), columns.id.desc()
    number = func.row_number().over(partition_by=columns.namespace, order_by=order)
    return select(columns.id, columns.created_ms, number.label("rank")).subquery()


def _cursor(entry: Json) -> str:
    return f"{entry['created_ms']}:{entry['id']}"


def _read_cursor(text: str) -> tuple[int, str]:
    created, _, artifact = text.partition(":")
    return int(created), artifact
