"""What a node may read in the object store: artifacts that it has to do with, and their packs.

A node has to do with an artifact

    of a pod that runs or ran there, by its lease,
    that a pod there continues from, by its claim,
    that a pod which the extender placed there names (`kyb.ai/restore-from`),
    that an ArtifactGrant lets one of its pods have,
    that a TierPlacement wants on its NVMe.

It may read the packs that such an artifact's manifest names, and those that it writes: the name of
a new pack proves for which node it was made, so that nobody keeps a list of them.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from sqlalchemy import or_, select, union

from kybernate.api.lenient import check_brackets, mapping, mappings, text, whole
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.grants import why_not
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from registry.pods import fetch
from registry.schema import ARTIFACTS, MARKS, PACK_NAMES, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from kybernate.adapters.objects.objects import StoreObjects
    from kybernate.core.artifacts.grants import Grant
    from registry.database import Database
    from registry.store.named import Named

    Gone = Callable[[str, str], bool]

_REMEMBERED_S = 2.0
"""How long it is remembered what a node may; then it is looked at again."""
_MOST_REMEMBERED = 4096
_MOST_UNIONS = 64
_AGAIN_S = 10.0
"""A manifest is read again, for it may have been packed again, no sooner than that."""
_MOST_BYTES = 64 << 20
"""Of what is remembered of manifests: their packs, some 45 bytes each."""
_PATIENCE_S = 0.1
"""Others' calls of the store take that long while it answers."""
_NOTHING = b"{}"
_HALF = 8
"""Bytes of a pack's name that are random; as many prove for which node it was made."""


class _Packs(NamedTuple):
    """Packs with their sizes, as manifests name them, and when these were read."""

    at: float
    sizes: Mapping[str, int]


class Told(NamedTuple):
    """What a manifest says: not believed, but compared. `packs`: those that it names, with their
    sizes."""

    id: str
    pod_uid: str
    packs: Mapping[str, int]


_UNREADABLE = Told("", "", {})
_READING = threading.Lock()
"""Held for one manifest after the other: what is read of it takes many times its bytes."""


class Reach:
    """Of all nodes. Safe to use from several threads."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is given once
        self,
        database: Database,
        objects: StoreObjects,
        gone: Gone,
        named: Callable[[str, str], Named],
        grants: Callable[[], Iterable[Grant]],
        placed: Callable[[str, str], bool],
        at_once: int,
    ) -> None:
        """See `Store`."""
        self._database = database
        self._objects = objects
        self._gone = gone
        self._named = named
        self._grants = grants
        self._placed = placed
        self._at_once = at_once
        self._room = threading.BoundedSemaphore(at_once)
        self._lively: dict[tuple[str, str], float] = {}
        self._unions: dict[tuple[str, str], _Packs] = {}
        self._manifests: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    @contextmanager
    def asking(self) -> Iterator[StoreObjects]:
        """The store, for one call of it, which has a thread for as long as the store takes. Raises
        RetryableError where as many as may wait for it do."""
        if not self._room.acquire(timeout=_PATIENCE_S):
            raise RetryableError(f"{self._at_once} calls wait for the object store: ask again", 5.0)
        try:
            yield self._objects
        finally:
            self._room.release()

    # --- pods -------------------------------------------------------------------------------------

    def lives(self, node: str, namespace: str) -> bool:
        """Whether a pod of the namespace is the node's, by a lease that has not ended or a claim,
        or runs there."""
        asked = time.monotonic()
        if self._lively.get((node, namespace), 0.0) > asked:
            return True
        here = PODS.c.namespace == namespace, _of_node(node)
        with self._database.read() as connection:
            now = self._database.now(connection)
            rows = connection.execute(select(PODS).where(*here)).all()
            lives = any(self._is_live(connection, one, node, now) for one in rows)
        if lives:
            if len(self._lively) >= _MOST_REMEMBERED:
                self._lively.clear()
            self._lively[node, namespace] = asked + _REMEMBERED_S
        return lives

    def namespaces(self, node: str) -> set[str]:
        """All in which it has, or had, a pod."""
        with self._database.read() as connection:
            query = select(PODS.c.namespace).where(_of_node(node)).distinct()
            return set(connection.execute(query).scalars())

    def _is_live(self, connection: Connection, pod: Any, node: str, now: int) -> bool:
        if pod.successor and pod.successor_node == node:
            after = fetch(connection, (pod.namespace, pod.successor))
            runs = after is None or not after.stopped or after.successor == after.uid
            return runs and not self._gone(pod.namespace, pod.successor)
        if pod.stopped or pod.ended or pod.successor:
            return False
        leased = pod.holder == node and pod.until_ms > now
        return (leased or pod.node == node) and not self._gone(pod.namespace, pod.uid)

    # --- artifacts --------------------------------------------------------------------------------

    def artifacts(self, node: str, namespace: str) -> set[str]:
        """Those of the namespace that are recorded; what is granted is left out."""
        named, known = self._named(node, namespace), ARTIFACTS.c
        mine = known.namespace == namespace
        here = PODS.c.namespace == namespace
        ran = select(PODS.c.uid).where(here, or_(PODS.c.node == node, PODS.c.holder == node))
        claimed = select(PODS.c.artifact).where(here, PODS.c.successor_node == node)
        ways = [
            known.pod_uid.in_(ran),
            known.id.in_(claimed),
            known.pod_uid.in_(named.pods),
            known.id.in_(named.artifacts),
        ]
        built = (known.pod.startswith(f"{one}-", autoescape=True) for one in named.builds)
        with self._database.read() as connection:
            query = union(*(select(known.id).where(mine, way) for way in ways))
            found = set(connection.execute(query).scalars())
            if named.builds:
                others = connection.execute(select(known.id).where(mine, or_(*built))).scalars()
                found.update(one for one in others if named.has(one, ""))
        return found

    def has(self, node: str, artifact: str) -> bool:
        """Whether the node has to do with this one, also where the registry has forgotten it. Of
        one that is nowhere it may ask in its pods' namespaces: nothing is read then. Raises
        RetryableError."""
        namespace = layout.parse_id(artifact).namespace
        if self._placed(artifact, node):
            return True
        uid = self.pod_of(artifact)
        if uid is None:
            return self.lives(node, namespace)
        with self._database.read() as connection:
            pod = fetch(connection, (namespace, uid)) if uid else None
        if pod is not None:
            claimed = (pod.successor_node, pod.artifact) == (node, artifact)
            if claimed or node in (pod.node, pod.holder):
                return True
        named = self._named(node, namespace)
        if named.has(artifact, uid) or self._granted(node, artifact):
            return True
        if named.unknown:
            raise RetryableError(named.unknown)
        return False

    def pod_of(self, artifact: str) -> str | None:
        """The UID of the pod whose state it is, by the manifest where the registry has forgotten
        it: whoever drops one says so before its bytes go. None if that is nowhere either, empty if
        it doesn't tell: a damaged one is nobody's."""
        with self._database.read() as connection:
            query = select(ARTIFACTS.c.pod_uid).where(ARTIFACTS.c.id == artifact)
            found: str | None = connection.execute(query).scalar_one_or_none()
        if found:
            return found
        told = self._manifest(artifact)
        return None if told is None else told.pod_uid

    def _granted(self, node: str, artifact: str) -> bool:
        now = time.time()
        return any(
            not why_not(artifact, namespace, self._grants, now)
            for namespace in self.namespaces(node) - {layout.parse_id(artifact).namespace}
            if self.lives(node, namespace)
        )

    # --- packs ------------------------------------------------------------------------------------

    def new_packs(self, node: str, namespace: str, count: int) -> list[str]:
        """Names of packs that this node is to write."""
        key, _ = self._secret()
        randoms = [secrets.token_bytes(_HALF) for _ in range(count)]
        return [(one + _proof(key, node, namespace, one)).hex() for one in randoms]

    def foreign(
        self, node: str, namespace: str, packs: Iterable[str], of: str | None = None
    ) -> set[str]:
        """Those of these packs that the node may not read. `of`: the artifact that it needs them
        for. Raises RetryableError."""
        key, until = self._secret()
        left = {one for one in packs if not _was_made(key, node, namespace, one)}
        of = of if of is not None and layout.parse_id(of).namespace == namespace else None
        if left and of is not None and self.has(node, of):
            left.difference_update(self._packs((of,)))
            if left:
                left.difference_update(self._packs((of,), again=True))
        if left:
            left.difference_update(self._union(node, namespace))
        if left:
            left.difference_update(self._union(node, namespace, again=True))
        if left and until > time.time() and self.lives(node, namespace):
            left.clear()
        return left

    def listed(self, node: str, namespace: str, packs: Iterable[str]) -> set[str]:
        """Those of these packs that are shown to the node."""
        key, _ = self._secret()
        known = self._union(node, namespace)
        return {one for one in packs if one in known or _was_made(key, node, namespace, one)}

    def made(self, node: str, namespace: str, pack: str) -> bool:
        """Whether the pack's name was made for this node."""
        return _was_made(self._secret()[0], node, namespace, pack)

    def size_of(self, node: str, namespace: str, pack: str) -> int | None:
        """The size of a pack that the node may read, as a manifest says it."""
        return self._union(node, namespace).get(pack)

    def _union(self, node: str, namespace: str, *, again: bool = False) -> Mapping[str, int]:
        """All that manifests name which the node may read."""
        known, now = self._unions.get((node, namespace)), time.monotonic()
        if known is not None and known.at > now - (0.0 if again else _REMEMBERED_S):
            return known.sizes
        sizes = self._packs(sorted(self.artifacts(node, namespace)), again=again)
        if len(self._unions) >= _MOST_UNIONS:
            self._unions.clear()
        self._unions[node, namespace] = _Packs(now, sizes)
        return sizes

    def _packs(self, artifacts: Sequence[str], *, again: bool = False) -> dict[str, int]:
        found: dict[str, int] = {}
        for artifact in artifacts:
            found.update(self._named_by(artifact, again=again))
        return found

    def _named_by(self, artifact: str, *, again: bool) -> Mapping[str, int]:
        now = time.monotonic()
        with self._lock:
            at, told = self._manifests.get(artifact, (0.0, b""))
            if told:
                self._manifests.move_to_end(artifact)
        recent = at >= now - _AGAIN_S
        # What isn't in the store, as most that is on NVMe, may come there at any moment.
        holds = (recent and not again) if told == _NOTHING else (recent or not again)
        if told and holds:
            known: dict[str, int] = orjson.loads(told)
            return known
        sizes = (self._manifest(artifact) or _UNREADABLE).packs
        self._remember(artifact, now, orjson.dumps(sizes))
        return sizes

    def _remember(self, artifact: str, now: float, told: bytes) -> None:
        with self._lock:
            if artifact in self._manifests:
                self._held -= len(artifact) + len(self._manifests.pop(artifact)[1])
            self._manifests[artifact] = now, told
            self._held += len(artifact) + len(told)
            while self._held > _MOST_BYTES:
                name, (_, oldest) = self._manifests.popitem(last=False)
                self._held -= len(name) + len(oldest)

    def _manifest(self, artifact: str) -> Told | None:
        """What it says; None if it isn't there, empty if it can't be read."""
        try:
            with self.asking() as objects:
                signed = bytes(objects.get(layout.manifest_key(artifact)))
            return read(signed)
        except NotFoundError:
            return None
        except RefusedError:
            return _UNREADABLE

    def _secret(self) -> tuple[bytes, float]:
        """What names are proven by, and until when names of 0.2.0 count, in seconds since 1970. In
        the database, where all replicas read it."""
        query = select(MARKS.c.value).where(MARKS.c.name == PACK_NAMES)
        with self._database.read() as connection:
            key, _, until = str(connection.execute(query).scalar_one()).partition(" ")
        return bytes.fromhex(key), float(until)


def read(signed: bytes) -> Told:
    """What a manifest says, below the line that signs it. Raises RefusedError."""
    body = signed.partition(b"\n")[2]
    check_brackets(body, "data:")
    with _READING:
        return _told(body)


def _told(body: bytes) -> Told:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(f"data: is no manifest ({error})") from error
    if not isinstance(found, dict):
        raise RefusedError("data: is no manifest")
    named = mappings(found.get("packs"))
    packs = {text(pack.get("id")): whole(pack.get("size")) for pack in named}
    return Told(text(found.get("id")), text(mapping(found.get("facts")).get("pod_uid")), packs)


def _of_node(node: str) -> Any:
    return or_(PODS.c.node == node, PODS.c.holder == node, PODS.c.successor_node == node)


def _was_made(key: bytes, node: str, namespace: str, pack: str) -> bool:
    name = bytes.fromhex(pack) if layout.is_pack(pack) else b""
    proof = _proof(key, node, namespace, name[:_HALF])
    return hmac.compare_digest(proof, name[_HALF:])


def _proof(key: bytes, node: str, namespace: str, random: bytes) -> bytes:
    told = f"{node}\n{namespace}\n".encode() + random
    return hmac.digest(key, told, "sha256")[:_HALF]
