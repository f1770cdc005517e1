"""The object store, which the registry alone has the credentials of.

An agent gets URLs that are good for minutes: to read what its node may (`reach`), and to put new
packs, under names that are made here, so that none has them yet. All that is small, and all that
could take something away, is done here for it: a manifest is put only where there is none, and by
the node that its state is recorded of.
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select

from kybernate.adapters.objects.objects import StoreObjects, open_objects
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.succession import handed_on, is_own
from kybernate.errors import ConfigError, ConflictError, NotFoundError, RefusedError
from kybernate.types import Tier
from registry.artifacts import is_kept
from registry.http.callers import ForbiddenError, nowhere
from registry.pods import fetch
from registry.schema import ARTIFACTS, COPIES
from registry.store.named import named_nothing
from registry.store.reach import Reach, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection

    from kybernate.core.artifacts.grants import Grant
    from kybernate.core.artifacts.layout import ObjectInfo
    from kybernate.core.artifacts.succession import PodRecord
    from registry.database import Database
    from registry.store.named import Named

_PAGE = 1000
_REQUEST_S = 15.0
"""All that is asked here is small, and agents ask again after seconds: another call then waits."""
_TICKET = re.compile(r"[0-9a-f]{16}")
_SMALL = 4096
LARGEST = 16 << 20
"""Bytes of a manifest that an agent may put: one of a state of a terabyte."""
_LAST = "~"
"""Behind all that a key has."""
_HEADERS = {"az": {"x-ms-blob-type": "BlockBlob"}}


class Store:
    """One object store. Safe to use from several threads."""

    def __init__(  # noqa: PLR0913 - each is given once
        self,
        url: str,
        database: Database,
        seconds: float,
        *,
        gone: Callable[[str, str], bool] = lambda _namespace, _uid: False,
        grants: Callable[[], Iterable[Grant]] = tuple,
        named: Callable[[str, str], Named] = named_nothing,
        check_data_key: Callable[[str, str, bytes], None] = lambda _namespace, _number, _data: None,
        placed: Callable[[str, str], bool] = nowhere,
        at_once: int = 8,
    ) -> None:
        """`seconds`: how long URLs are good. `gone`: whether the cluster says that the pod of this
        namespace and UID is no more, or raises RetryableError. `grants`: what namespaces let others
        read; may raise RetryableError, too. `named`: what pods on this node, of this namespace,
        name to continue from. `placed`: whether a TierPlacement wants an artifact on a node's NVMe,
        which reads it then, and can't open it. `check_data_key`: raises RefusedError for what is no
        data key of this namespace and number. `at_once`: calls that may wait for the store; others
        need threads, too. Raises ConfigError for what is no store that requests can be signed for.
        """
        objects = open_objects(url, _REQUEST_S)
        if not isinstance(objects, StoreObjects) or not objects.signs:
            raise ConfigError("object_store", f"{url!r} must begin with s3://, gs:// or az://")
        self.url = url
        self.seconds = seconds
        self.headers = _HEADERS.get(url.partition(":")[0], {})
        self._objects = objects
        self._database = database
        self._reach = Reach(database, objects, gone, named, grants, placed, at_once)
        self._check_data_key = check_data_key

    # --- what agents ask for ----------------------------------------------------------------------

    def readable(self, node: str, keys: Sequence[str], of: str | None) -> list[str]:
        """URLs to GET them by. `of`: the artifact for which. Raises ForbiddenError."""
        for namespace in {_namespace(key) for key in keys}:
            mine = [key for key in keys if _namespace(key) == namespace]
            self._check_reads(node, namespace, mine, of)
        return self._objects.signed("GET", keys, timedelta(seconds=self.seconds))

    def packable(self, node: str, namespace: str, count: int) -> list[tuple[str, str, str]]:
        """Names of new packs, and URLs to PUT each and its index by. Raises ForbiddenError."""
        self._check(node, namespace)
        names = self._reach.new_packs(node, namespace, count)
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
        elif kind == layout.CLOCKS:
            # Whose it is, it says; who asks for the time reads no more of it than when it was put.
            content = node.encode()
        else:
            self._check(node, rest[0])
            if kind == layout.KEYS:
                self._check_data_key(rest[0], rest[1], content)
        with self._reach.asking() as objects:
            objects.put(key, content, create=create or kind in (layout.KEYS, layout.CLOCKS))

    def head(self, node: str, key: str) -> ObjectInfo:
        """What the object is. Raises ForbiddenError, NotFoundError."""
        kind, rest = _kind(key)
        if not (kind == layout.CLOCKS and len(rest) == 1):
            self._check_reads(node, _namespace(key), [key], None)
        with self._reach.asking() as objects:
            return objects.head(key)

    def page(self, node: str, prefix: str, after: str) -> tuple[list[ObjectInfo], str | None]:
        """Objects below the prefix that the node may read, and where the next page begins. Raises
        ForbiddenError."""
        kind, rest = _kind(prefix)
        if kind in (layout.PACKS, layout.INDEX) and len(rest) == 2 and rest[0]:
            self._check(node, rest[0])
            infos, more = self._page(prefix, after)
            packs = {one: layout.pack_of(one.key, prefix) or "" for one in infos}
            shown = self._reach.listed(node, rest[0], packs.values())
            return [one for one in infos if packs[one] in shown], more
        if kind != layout.ARTIFACTS or len(rest) > 2:
            raise ForbiddenError(f"prefix: {prefix} is not listed for agents")
        # One namespace a page: those that the node has to do with, one after the other.
        found = [rest[0]] if rest[0] else self._reach.namespaces(node)
        wanted = sorted(f"{layout.ARTIFACTS}{namespace}/" for namespace in found)
        for number, below in enumerate(wanted):
            if after >= below + _LAST:
                continue
            namespace = below.split("/")[1]
            infos, more = self._page(below, after if after.startswith(below) else "")
            mine = self._reach.artifacts(node, namespace)
            infos = [info for info in infos if layout.id_of(info.key) in mine]
            return infos, more or (below + _LAST if number + 1 < len(wanted) else None)
        return [], None

    def delete(self, node: str, keys: Sequence[str]) -> None:
        """Remove them: states of the node's own pods, indexes of packs that it wrote or that are
        damaged, its own questions for the time. Raises ForbiddenError."""
        for key in keys:
            self._check_delete(node, key)
        with self._reach.asking() as objects:
            objects.delete(keys)

    # --- who may ----------------------------------------------------------------------------------

    def _check(self, node: str, namespace: str) -> None:
        if not self._reach.lives(node, namespace):
            raise ForbiddenError(
                f"node {node} has no lease or claim on a pod of namespace {namespace}: take one "
                "first"
            )

    def _check_reads(self, node: str, namespace: str, keys: Sequence[str], of: str | None) -> None:
        """The node has to do with these artifacts, and with what these packs are of."""
        artifacts = [found for key in keys if (found := layout.id_of(key))]
        mine = self._reach.artifacts(node, namespace) if len(artifacts) > 1 else ()
        for artifact in artifacts:
            if artifact not in mine and not self._reach.has(node, artifact):
                raise ForbiddenError(_foreign(node, namespace, artifact))
        if any(key.startswith(layout.KEYS) for key in keys):
            self._check(node, namespace)
        named = (key.split("/") for key in keys if key.startswith((layout.PACKS, layout.INDEX)))
        self._check_packs(node, namespace, {pack for _, _, pack in named}, of)

    def _check_packs(
        self, node: str, namespace: str, packs: Iterable[str], of: str | None = None
    ) -> None:
        for pack in self._reach.foreign(node, namespace, packs, of):
            raise ForbiddenError(_foreign(node, namespace, f"pack {pack}"))

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
            told = read(signed)
            if (told.id, told.pod_uid) != (artifact, uid):
                raise RefusedError(f"data: is not the manifest of {artifact}")
            pod = _check_speaks(connection, node, artifact, uid)
            if pod.successor not in ("", pod.uid) and pod.successor_node != node:
                raise ForbiddenError(
                    f"pod {pod.successor} on node {pod.successor_node} continues with {artifact}: "
                    f"node {node} puts nothing of it any more"
                )
        # Else by naming others' packs it would get to read them.
        self._check_packs(node, layout.parse_id(artifact).namespace, told.packs)

    def _check_delete(self, node: str, key: str) -> None:
        kind, rest = _kind(key)
        if kind == layout.CLOCKS and len(rest) == 1:
            self._check_clock(node, key)
            return
        if kind == layout.INDEX and len(rest) == 2:
            self._check_index(node, *rest)
            return
        artifact = layout.id_of(key)
        if artifact is None:
            raise ForbiddenError(f"keys: no agent removes {key}")
        uid = self._reach.pod_of(artifact)
        if uid is None:
            return
        if not uid:
            raise ForbiddenError(
                f"keys: the manifest of {artifact} can't be read, and the registry has forgotten "
                "it, so nobody knows whose it is: have who administers the object store remove it"
            )
        with self._database.read() as connection:
            pod = _check_speaks(connection, node, artifact, uid)
            # Once the successor has dropped the copy, each of them may tidy up.
            if handed_on(pod, node, artifact) and _in_store(connection, artifact):
                raise ForbiddenError(
                    f"pod {pod.successor} on node {pod.successor_node} continues with {artifact}: "
                    f"node {node} removes nothing of it"
                )
            # Nor does the successor's node, also while it needs it.
            if not is_own(pod, node) and _is_kept(connection, artifact):
                raise ForbiddenError(
                    f"people keep {artifact}: node {node}, where pod {uid} never was, removes "
                    "nothing of it"
                )

    def _check_clock(self, node: str, key: str) -> None:
        with suppress(NotFoundError), self._reach.asking() as objects:
            if bytes(objects.get(key, 0, _SMALL)) != node.encode():
                raise ForbiddenError(f"keys: {key} is another node's")

    def _check_index(self, node: str, namespace: str, pack: str) -> None:
        """The node wrote the pack, or has to do with it and it is not as its manifest says: what
        has no index is not built upon."""
        self._check(node, namespace)
        if self._reach.made(node, namespace, pack):
            return
        size = self._reach.size_of(node, namespace, pack)
        if size is None:
            raise ForbiddenError(_foreign(node, namespace, f"pack {pack}"))
        with suppress(NotFoundError), self._reach.asking() as objects:
            if objects.head(f"{layout.PACKS}{namespace}/{pack}").size == size:
                raise ForbiddenError(f"keys: pack {pack} is there and whole; its index stays")

    def _page(self, prefix: str, after: str) -> tuple[list[ObjectInfo], str | None]:
        with self._reach.asking() as objects:
            found = objects.page(prefix, after, _PAGE)
        return found, found[-1].key if len(found) == _PAGE else None


def _recorded(connection: Connection, artifact: str) -> str | None:
    """The UID of the pod whose state it is."""
    query = select(ARTIFACTS.c.pod_uid).where(ARTIFACTS.c.id == artifact)
    found: str | None = connection.execute(query).scalar_one_or_none()
    return found


def _in_store(connection: Connection, artifact: str) -> bool:
    """Whether the registry knows a copy of it in an object store."""
    wanted = COPIES.c.artifact == artifact, COPIES.c.place == str(Tier.OBJECT)
    return connection.execute(select(COPIES.c.place).where(*wanted)).first() is not None


def _is_kept(connection: Connection, artifact: str) -> bool:
    """Whether the registry knows that people keep its copy in an object store."""
    query = select(ARTIFACTS.c.facts).where(ARTIFACTS.c.id == artifact)
    facts: str | None = connection.execute(query).scalar_one_or_none()
    return facts is not None and is_kept(facts)


def _check_speaks(connection: Connection, node: str, artifact: str, uid: str) -> PodRecord:
    """The artifact's pod runs or ran on the node, or the node writes for it, or has its successor
    and claimed just this one. Of a pod of which nothing is known, as after a loss of the database,
    nobody speaks."""
    pod = fetch(connection, (layout.parse_id(artifact).namespace, uid))
    if pod is None or not (
        node in (pod.node, pod.holder) or (pod.successor_node, pod.artifact) == (node, artifact)
    ):
        raise ForbiddenError(f"{artifact} is a state of pod {uid}, which is not node {node}'s")
    return pod


def _foreign(node: str, namespace: str, what: str) -> str:
    return (
        f"node {node} has nothing to do with {what} of namespace {namespace}: no pod of it was "
        "there, none there has claimed or names it, and no ArtifactGrant lets one have it"
    )


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
