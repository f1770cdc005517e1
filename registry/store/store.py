"""The object store, which the registry alone has the credentials of.

An agent gets URLs that are good for minutes: to read what is in namespaces that its node has to do
with, and to put new packs there, under names that are made here, so that none has them yet. All
that is small, and all that could take something away, is done here for it: a manifest is put only
where there is none, and by the node that its state is recorded of.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import or_, select

from kybernate.adapters.objects.objects import StoreObjects, open_objects
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.grants import why_not
from kybernate.core.artifacts.succession import handed_on
from kybernate.errors import ConfigError, ConflictError, NotFoundError, RefusedError
from kybernate.types import Tier
from registry.http.callers import ForbiddenError
from registry.pods import fetch
from registry.schema import ARTIFACTS, COPIES, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection

    from kybernate.core.artifacts.grants import Grant
    from kybernate.core.artifacts.layout import ObjectInfo
    from kybernate.core.artifacts.succession import PodRecord
    from registry.database import Database

log = logging.getLogger(__name__)

_REMEMBERED_S = 2.0
"""How long it is remembered that a node may; then its leases and claims are looked at anew."""
_PAGE = 1000
_TICKET = re.compile(r"[0-9a-f]{16}")
_SMALL = 4096
LARGEST = 16 << 20
"""Bytes of a manifest that an agent may put: one of a state of a terabyte."""
_LAST = "~"
"""Behind all that a key has."""
_MOST_REMEMBERED = 4096
_HEADERS = {"az": {"x-ms-blob-type": "BlockBlob"}}


class Store:
    """One object store. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        database: Database,
        seconds: float,
        *,
        gone: Callable[[str, str], bool] = lambda _namespace, _uid: False,
        grants: Callable[[], Iterable[Grant]] = tuple,
        check_data_key: Callable[[str, str, bytes], None] = lambda _namespace, _number, _data: None,
    ) -> None:
        """`seconds`: how long URLs are good. `gone`: whether the cluster says that the pod of this
        namespace and UID is no more, or raises RetryableError. `grants`: what namespaces let others
        read; may raise RetryableError, too. `check_data_key`: raises RefusedError for what is no
        data key of this namespace and number. Raises ConfigError for what is no store that requests
        can be signed for.
        """
        objects = open_objects(url)
        if not isinstance(objects, StoreObjects) or not objects.signs:
            raise ConfigError("object_store", f"{url!r} must begin with s3://, gs:// or az://")
        self.url = url
        self.seconds = seconds
        self.headers = _HEADERS.get(url.partition(":")[0], {})
        self._objects = objects
        self._database = database
        self._gone = gone
        self._grants = grants
        self._check_data_key = check_data_key
        self._remembered: dict[tuple[str, str], float] = {}

    # --- what agents ask for ----------------------------------------------------------------------

    def readable(self, node: str, keys: Sequence[str], of: str | None) -> list[str]:
        """URLs to GET them by. Raises ForbiddenError."""
        for namespace in {_namespace(key) for key in keys}:
            if not self._may(node, namespace):
                mine = [key for key in keys if _namespace(key) == namespace]
                self._check_reads(node, namespace, mine, of)
        return self._objects.signed("GET", keys, timedelta(seconds=self.seconds))

    def packable(self, node: str, namespace: str, count: int) -> list[tuple[str, str, str]]:
        """Names of new packs, and URLs to PUT each and its index by. Raises ForbiddenError."""
        self._check(node, namespace)
        names = [secrets.token_hex(16) for _ in range(count)]
        kinds = (layout.PACKS, layout.INDEX)
        keys = [f"{kind}{namespace}/{name}" for kind in kinds for name in names]
        urls = self._objects.signed("PUT", keys, timedelta(seconds=self.seconds))
        return list(zip(names, urls[:count], urls[count:], strict=True))

    def put(self, node: str, key: str, data: str, *, create: bool) -> None:
        """Put a small object: a manifest, a data key, a writer's note to sweeps, a question for the
        time. Raises ForbiddenError, ConflictError, RefusedError."""
        try:
            content = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise RefusedError(f"data: is not in base64 ({error})") from error
        kind, rest = _kind(key)
        if kind == layout.ARTIFACTS:
            self._check_manifest(node, key, content)
            create = True
        elif len(content) > _SMALL or not _is_small(kind, rest):
            raise RefusedError(f"key: {key} is not put by way of the registry")
        elif kind != layout.CLOCKS:
            self._check(node, rest[0])
            if kind == layout.KEYS:
                self._check_data_key(rest[0], rest[1], content)
        self._objects.put(key, content, create=create or kind == layout.KEYS)

    def head(self, node: str, key: str) -> ObjectInfo:
        """What the object is. Raises ForbiddenError, NotFoundError."""
        kind, rest = _kind(key)
        if not (kind == layout.CLOCKS and len(rest) == 1) and not self._may(node, _namespace(key)):
            self._check_reads(node, _namespace(key), [key], None)
        return self._objects.head(key)

    def page(self, node: str, prefix: str, after: str) -> tuple[list[ObjectInfo], str | None]:
        """Objects below the prefix that the node may read, and where the next page begins. Raises
        ForbiddenError."""
        kind, rest = _kind(prefix)
        if kind in (layout.PACKS, layout.INDEX) and len(rest) == 2 and rest[0]:
            self._check(node, rest[0])
            return self._page(prefix, after)
        if kind != layout.ARTIFACTS or len(rest) > 2:
            raise ForbiddenError(f"prefix: {prefix} is not listed for agents")
        # One namespace a page: those that the node has to do with, one after the other.
        found = [rest[0]] if rest[0] else self._namespaces(node)
        wanted = sorted(f"{layout.ARTIFACTS}{namespace}/" for namespace in found)
        for number, below in enumerate(wanted):
            if after >= below + _LAST:
                continue
            namespace = below.split("/")[1]
            infos, more = self._page(below, after if after.startswith(below) else "")
            if not self._may(node, namespace):
                mine = self._own(node, namespace)
                infos = [info for info in infos if layout.id_of(info.key) in mine]
            return infos, more or (below + _LAST if number + 1 < len(wanted) else None)
        return [], None

    def delete(self, node: str, keys: Sequence[str]) -> None:
        """Remove them: states of the node's own pods, indexes of packs that turned out damaged.
        Raises ForbiddenError."""
        for key in keys:
            self._check_delete(node, key)
        self._objects.delete(keys)

    # --- who may ----------------------------------------------------------------------------------

    def _check(self, node: str, namespace: str) -> None:
        if not self._may(node, namespace):
            raise ForbiddenError(
                f"node {node} has no lease or claim on a pod of namespace {namespace}: take one "
                "first"
            )

    def _may(self, node: str, namespace: str) -> bool:
        """Whether a pod of the namespace is the node's, by a lease that has not ended or a claim,
        or runs there."""
        asked = time.monotonic()
        if self._remembered.get((node, namespace), 0.0) > asked:
            return True
        with self._database.read() as connection:
            now = self._database.now(connection)
            may = any(
                self._live(connection, one, node, now) for one in _rows(connection, node, namespace)
            )
        if may:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[node, namespace] = asked + _REMEMBERED_S
        return may

    def _live(self, connection: Connection, pod: Any, node: str, now: int) -> bool:
        if pod.successor and pod.successor_node == node:
            after = fetch(connection, (pod.namespace, pod.successor))
            runs = after is None or not after.stopped or after.successor == after.uid
            return runs and not self._gone(pod.namespace, pod.successor)
        if pod.stopped or pod.ended or pod.successor:
            return False
        leased = pod.holder == node and pod.until_ms > now
        return (leased or pod.node == node) and not self._gone(pod.namespace, pod.uid)

    def _check_reads(self, node: str, namespace: str, keys: Sequence[str], of: str | None) -> None:
        """Only states of the node's own pods, and what an ArtifactGrant lets one of them have."""
        with self._database.read() as connection:
            mine = _own(connection, node, namespace)
        packs: set[str] = set()
        whole = of is not None and layout.parse_id(of).namespace == namespace
        if of is not None and whole and (of in mine or self._granted(node, of)):
            packs = self._packs(of)
        for key in keys:
            artifact = layout.id_of(key)
            if artifact is not None and (artifact in mine or self._granted(node, artifact)):
                continue
            if layout.pack_of(key, f"{layout.PACKS}{namespace}/") in packs:
                continue
            if artifact is not None and self._was_its(node, artifact):
                continue
            self._check(node, namespace)

    def _was_its(self, node: str, artifact: str) -> bool:
        """Whether it is of a pod of the node's, though the registry has forgotten it: whoever drops
        a state says so before, and reads what it is then."""
        uid = self._uid_of(artifact)
        with self._database.read() as connection:
            return bool(uid) and _has_to_do(connection, node, artifact, uid) is not None

    def _granted(self, node: str, artifact: str) -> bool:
        now = time.time()
        return any(
            not why_not(artifact, namespace, self._grants, now)
            for namespace in self._namespaces(node)
            if self._may(node, namespace)
        )

    def _packs(self, artifact: str) -> set[str]:
        """Those that the artifact's manifest names."""
        try:
            signed = bytes(self._objects.get(layout.manifest_key(artifact)))
        except NotFoundError:
            return set()
        return {str(pack.get("id")) for pack in _body(signed).get("packs") or ()}

    def _check_manifest(self, node: str, key: str, signed: bytes) -> None:
        """It is that of a state that is recorded, of a pod of the node's."""
        artifact = layout.id_of(key)
        if artifact is None or len(signed) > LARGEST:
            raise RefusedError(f"key: {key} is not put by way of the registry")
        self._check(node, layout.parse_id(artifact).namespace)
        with self._database.read() as connection:
            uid = _recorded(connection, artifact)
            if uid is None:
                raise ConflictError(f"artifact {artifact} is not known; record it first")
            body = _body(signed)
            said = body.get("id"), (body.get("facts") or {}).get("pod_uid")
            if said != (artifact, uid):
                raise RefusedError(f"data: is not the manifest of {artifact}")
            pod = _check_speaks(connection, node, artifact, uid)
            if pod.successor not in ("", pod.uid) and pod.successor_node != node:
                raise ForbiddenError(
                    f"pod {pod.successor} on node {pod.successor_node} goes on with {artifact}: "
                    f"node {node} puts nothing of it any more"
                )

    def _check_delete(self, node: str, key: str) -> None:
        kind, rest = _kind(key)
        if kind == layout.CLOCKS and len(rest) == 1:
            return
        if kind == layout.INDEX:
            self._check(node, rest[0])
            return
        artifact = layout.id_of(key)
        if artifact is None:
            raise ForbiddenError(f"keys: no agent removes {key}")
        with self._database.read() as connection:
            uid = _recorded(connection, artifact) or self._uid_of(artifact)
            if not uid:
                return
            pod = _check_speaks(connection, node, artifact, uid)
            # Once the successor has dropped the copy, each of them may tidy up.
            if handed_on(pod, node, artifact) and _in_store(connection, artifact):
                raise ForbiddenError(
                    f"pod {pod.successor} on node {pod.successor_node} goes on with {artifact}: "
                    f"node {node} removes nothing of it"
                )

    def _uid_of(self, artifact: str) -> str:
        """Of one that was dropped from the registry already: by its manifest, if it is there."""
        try:
            signed = bytes(self._objects.get(layout.manifest_key(artifact)))
        except NotFoundError:
            return ""
        return str((_body(signed).get("facts") or {}).get("pod_uid") or "")

    def _namespaces(self, node: str) -> set[str]:
        """All in which it has, or had, a pod."""
        with self._database.read() as connection:
            query = select(PODS.c.namespace).where(_of_node(node)).distinct()
            return set(connection.execute(query).scalars())

    def _own(self, node: str, namespace: str) -> set[str]:
        with self._database.read() as connection:
            return _own(connection, node, namespace)

    def _page(self, prefix: str, after: str) -> tuple[list[ObjectInfo], str | None]:
        found = self._objects.page(prefix, after, _PAGE)
        return found, found[-1].key if len(found) == _PAGE else None


def _of_node(node: str) -> Any:
    return or_(PODS.c.node == node, PODS.c.holder == node, PODS.c.successor_node == node)


def _rows(connection: Connection, node: str, namespace: str) -> Sequence[Any]:
    return connection.execute(
        select(PODS).where(PODS.c.namespace == namespace, _of_node(node))
    ).all()


def _own(connection: Connection, node: str, namespace: str) -> set[str]:
    """The artifacts of the node's pods."""
    pods = select(PODS.c.uid).where(PODS.c.namespace == namespace, _of_node(node))
    wanted = ARTIFACTS.c.namespace == namespace, ARTIFACTS.c.pod_uid.in_(pods)
    return set(connection.execute(select(ARTIFACTS.c.id).where(*wanted)).scalars())


def _recorded(connection: Connection, artifact: str) -> str | None:
    """The UID of the pod whose state it is."""
    query = select(ARTIFACTS.c.pod_uid).where(ARTIFACTS.c.id == artifact)
    found: str | None = connection.execute(query).scalar_one_or_none()
    return found


def _in_store(connection: Connection, artifact: str) -> bool:
    """Whether the registry knows a copy of it in an object store."""
    wanted = COPIES.c.artifact == artifact, COPIES.c.place == str(Tier.OBJECT)
    return connection.execute(select(COPIES.c.place).where(*wanted)).first() is not None


def _has_to_do(connection: Connection, node: str, artifact: str, uid: str) -> PodRecord | None:
    """The artifact's pod, if it runs or ran on the node, or the node writes for it or has its
    successor. Of a pod of which nothing is known, as after a loss of the database, nobody."""
    pod = fetch(connection, (layout.parse_id(artifact).namespace, uid))
    known = pod is not None and node in (pod.node, pod.holder, pod.successor_node)
    return pod if known else None


def _check_speaks(connection: Connection, node: str, artifact: str, uid: str) -> PodRecord:
    pod = _has_to_do(connection, node, artifact, uid)
    if pod is None:
        raise ForbiddenError(f"{artifact} is a state of pod {uid}, which is not node {node}'s")
    return pod


def _body(signed: bytes) -> dict[str, Any]:
    """What a manifest says, below the line that signs it: not believed, but compared."""
    try:
        body = orjson.loads(signed.partition(b"\n")[2])
    except orjson.JSONDecodeError as error:
        raise RefusedError(f"data: is no manifest ({error})") from error
    if not isinstance(body, dict):
        raise RefusedError("data: is no manifest")
    return body


def _kind(key: str) -> tuple[str, list[str]]:
    kind, _, rest = key.partition("/")
    return f"{kind}/", rest.split("/")


def _namespace(key: str) -> str:
    """Whose object it is. Raises ForbiddenError for what agents don't read."""
    kind, rest = _kind(key)
    known = {layout.ARTIFACTS: 4, layout.PACKS: 2, layout.INDEX: 2, layout.KEYS: 2}
    if known.get(kind) != len(rest) or (kind == layout.ARTIFACTS and layout.id_of(key) is None):
        raise ForbiddenError(f"keys: {key} is not read by agents")
    return rest[0]


def _is_small(kind: str, rest: list[str]) -> bool:
    if kind == layout.CLOCKS:
        return len(rest) == 1 and _TICKET.fullmatch(rest[0]) is not None
    if kind == layout.LEASES:
        return len(rest) == 2 and _TICKET.fullmatch(rest[1]) is not None
    return kind == layout.KEYS and len(rest) == 2 and rest[1].isascii() and rest[1].isdigit()
