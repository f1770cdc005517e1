"""Copies that TierPlacements want on this node's NVMe: packs as the object store has them.

They stay encrypted, and no key is asked for before a pod comes that may have the artifact: who
holds such a copy can't read it. The manifest is written last, so that half a copy is none. A pack
that several of them share is there once.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.checkpoint.catalogue import manifests as found_in
from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.places import PACK, opened
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.errors import CorruptError, NotFoundError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest, Pack
    from kybernate.lib.deadline import Deadline


_LARGEST_PACK = 4 * PACK
"""Bytes: no release writes one that large, and each is in memory as a whole while it is copied."""


class PlacedCopies:
    """All of them, in `own`, from `store`. Calls block; any thread may make them."""

    def __init__(self, own: Place, store: Place, keys: ArtifactKeys) -> None:
        self._own = own
        self._store = store
        self._keys = keys
        self._lock = threading.Lock()
        self._coming: dict[object, tuple[str, frozenset[str]]] = {}
        self._begun: set[str] = set()

    def bring(
        self,
        artifact: str,
        room: int,
        deadline: Deadline,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """It is here when this returns, each pack as the store has it and read back. `room`: bytes
        that may come; `progress` hears of bytes done and of all. Continues from where an earlier
        call was cut short.

        Raises NotFoundError (the store has none), RetryableError (no room, or the store doesn't
        answer), CorruptError, RefusedError, DeadlineError, OSError.
        """
        key = layout.manifest_key(artifact)
        signed, manifest = self._manifest(artifact, key)
        packs = frozenset(_key(manifest, pack) for pack in manifest.packs)
        # Another call for it may not have ended yet.
        call = object()
        with self._lock:
            self._coming[call] = artifact, packs
            self._begun.add(artifact)
        try:
            self._bring_packs(manifest, room, deadline, progress)
            self._own.objects.put(key, signed)
        finally:
            with self._lock:
                del self._coming[call]
        with self._lock:
            self._begun.discard(artifact)

    def _manifest(self, artifact: str, key: str) -> tuple[bytes, Manifest]:
        try:
            signed = bytes(self._store.objects.get(key, 0, manifests.LARGEST + 1))
        except NotFoundError as error:
            raise NotFoundError(f"{artifact} is not in {self._store.name}") from error
        what = f"the manifest of {artifact} in {self._store.name}"
        manifest = opened(signed, self._keys, what)
        if manifest.id != artifact:
            raise CorruptError(f"{what} is that of {manifest.id}")
        if manifest.form == manifests.RAW:
            raise RefusedError(f"{artifact} is not packed in {self._store.name}")
        if (largest := max((pack.size for pack in manifest.packs), default=0)) > _LARGEST_PACK:
            raise RefusedError(f"{what} names a pack of {largest} bytes, which no release writes")
        return signed, manifest

    def _bring_packs(
        self,
        manifest: Manifest,
        room: int,
        deadline: Deadline,
        progress: Callable[[int, int], None],
    ) -> None:
        total = sum(pack.size for pack in manifest.packs)
        lacking = [pack for pack in manifest.packs if not self._is_here(manifest, pack)]
        need, done = sum(pack.size for pack in lacking), 0
        if need > room:
            raise RetryableError(
                f"NVMe has room for {max(0, room)} bytes of placed copies, and {manifest.id} takes "
                f"{need} more; free some, or give the agent more (nvme_bytes)"
            )
        done = total - need
        progress(done, total)
        keys = [_key(manifest, pack) for pack in lacking]
        self._store.objects.expect(keys, manifest.id)

        def bring(pack: Pack) -> int:
            deadline.check()
            self._copy(manifest, pack)
            return pack.size

        with threads(self._store.transfers, "place") as pool:
            for size in ordered(pool, bring, lacking, 2 * self._store.transfers):
                done += size
                progress(done, total)

    def _copy(self, manifest: Manifest, pack: Pack) -> None:
        key = _key(manifest, pack)
        try:
            # One byte more shows that it is longer: whoever put it there may have put anything.
            data = self._store.objects.get(key, 0, pack.size + 1)
        except NotFoundError as error:
            raise CorruptError(f"{manifest.id} has lost {key} in {self._store.name}") from error
        if len(data) != pack.size:
            raise CorruptError(f"{key} in {self._store.name} has not the {pack.size} bytes it had")
        self._own.objects.put(key, data)
        back: memoryview | None = None
        with suppress(NotFoundError):
            back = self._own.objects.get(key)
        if back != data:
            self._own.objects.delete([key])
            raise CorruptError(f"{key} does not read back from {self._own.name} as it was written")

    def _is_here(self, manifest: Manifest, pack: Pack) -> bool:
        try:
            return self._own.objects.head(_key(manifest, pack)).size == pack.size
        except NotFoundError:
            return False

    def drop(self, artifacts: Collection[str]) -> None:
        """None of these is here when this returns, and no pack that nothing here needs. Raises
        KybernateError, OSError."""
        self._own.objects.delete([layout.manifest_key(one) for one in artifacts])
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        there = list(found_in(self._own, self._keys))
        damaged = [one.id for one in there if one.manifest is None]
        self._own.objects.delete([layout.manifest_key(one) for one in damaged])
        whole = [one.manifest for one in there if one.manifest is not None]
        used = {_key(manifest, pack) for manifest in whole for pack in manifest.packs}
        used |= {key for _, those in self._coming.values() for key in those}
        packs = [info.key for info in self._own.objects.scan(layout.PACKS)]
        self._own.objects.delete([key for key in packs if key not in used])
        self._begun &= self._now_coming()

    def cut_short(self) -> tuple[str, ...]:
        """Artifacts of which a part may be here and nothing more comes: another call continues from
        there, and `drop` takes it away."""
        with self._lock:
            return tuple(sorted(self._begun - self._now_coming()))

    def _now_coming(self) -> set[str]:
        return {artifact for artifact, _ in self._coming.values()}

    def here(self) -> tuple[str, ...]:
        """Which artifacts are here, the oldest first. Raises KybernateError, OSError."""
        found = (layout.id_of(info.key) for info in self._own.objects.scan(layout.ARTIFACTS))
        return tuple(sorted(one for one in found if one is not None))

    def used(self) -> int:
        """Bytes that all of them take. Raises KybernateError, OSError."""
        return sum(info.size for info in self._own.objects.scan(layout.PACKS))


def _key(manifest: Manifest, pack: Pack) -> str:
    return f"{layout.PACKS}{manifest.facts.namespace}/{pack.id}"
