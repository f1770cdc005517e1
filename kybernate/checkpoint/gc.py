"""Sweeps a place: packs that no manifest names, and what crashes left behind.

What to do is decided in `core.artifacts.sweep`; here it is looked up and done. A namespace with a
manifest that can't be read is left alone: nobody can say what it needs.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.adapters.objects.objects import LocalObjects
from kybernate.checkpoint.catalogue import manifests
from kybernate.checkpoint.packs.known import read_lease
from kybernate.checkpoint.places import time_of
from kybernate.checkpoint.raw.seal import remove_folder
from kybernate.core.artifacts import layout
from kybernate.core.chunks.sweep import Plan, Seen, plan
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.layout import ObjectInfo
    from kybernate.core.chunks.sweep import Lease

GRACE = 24 * 3600.0
"""Seconds that a pack stays condemned, and that anything unfinished is left alone."""

_Infos = dict[str, dict[str, "ObjectInfo"]]


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep does, or would do. `held`: namespaces left alone, and why."""

    plans: dict[str, Plan] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    leftovers: tuple[Path, ...] = ()
    clocks: tuple[str, ...] = ()


def sweep(
    place: Place,
    keys: ArtifactKeys,
    *,
    dry_run: bool,
    grace: float = GRACE,
    clock: Callable[[Place], float] = time_of,
) -> Swept:
    """Condemn what is not needed, delete what was condemned long enough, by the place's own clock.
    Raises RetryableError, OSError."""
    now = clock(place)
    packs, index = _infos(place, layout.PACKS), _infos(place, layout.INDEX)
    condemned, leases = _infos(place, layout.CONDEMNED), _infos(place, layout.LEASES)
    # After the packs: a pack that is listed and whose writer is done has its manifest by now.
    used, held = _used(place, keys)
    plans = {}
    for namespace in sorted({*packs, *index, *condemned, *leases} - set(held)):
        seen = Seen(
            packs={name: (i.size, i.modified) for name, i in packs[namespace].items()},
            used=frozenset(used[namespace]),
            condemned={name: i.modified for name, i in condemned[namespace].items()},
            leases=_leases(place, leases[namespace]),
            indexed=frozenset(index[namespace]),
        )
        plans[namespace] = plan(seen, grace, now)
    # Of those who asked for the time, and were killed before they had it.
    asked = place.objects.scan(layout.CLOCKS)
    clocks = tuple(info.key for info in asked if now - info.modified >= grace)
    swept = Swept(plans, held, tuple(_leftovers(place, now - grace)), clocks)
    if not dry_run:
        _do(place, swept)
    return swept


def clear(place: Place) -> None:
    """Delete all that is in a place. What names the rest goes first: a call that is cut short
    leaves no artifact without its bytes. Raises RetryableError, OSError."""
    for kind in layout.KINDS:
        place.objects.delete([info.key for info in place.objects.scan(kind)])
        if place.root is not None:
            # Images, which are no objects, and what a crash left.
            with suppress(FileNotFoundError):
                shutil.rmtree(place.root / kind)


def _do(place: Place, swept: Swept) -> None:
    for namespace, todo in swept.plans.items():
        _delete(place, layout.CONDEMNED, namespace, todo.spare)
        for pack in todo.condemn:
            place.objects.put(f"{layout.CONDEMNED}{namespace}/{pack}", b"1")
            _delete(place, layout.INDEX, namespace, (pack,))
        _delete(place, layout.PACKS, namespace, todo.delete)
        _delete(place, layout.CONDEMNED, namespace, todo.delete)
        _delete(place, layout.INDEX, namespace, (*todo.delete, *todo.strays))
        _delete(place, layout.CONDEMNED, namespace, todo.strays)
        _delete(place, layout.LEASES, namespace, todo.ended)
    place.objects.delete(list(swept.clocks))
    for path in swept.leftovers:
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink(missing_ok=True)


def _delete(place: Place, kind: str, namespace: str, names: tuple[str, ...]) -> None:
    place.objects.delete([f"{kind}{namespace}/{name}" for name in names])


def _infos(place: Place, kind: str) -> _Infos:
    """By namespace and name: the objects of one kind."""
    found: _Infos = defaultdict(dict)
    for info in place.objects.scan(kind):
        parts = info.key.removeprefix(kind).split("/")
        if len(parts) == 2 and (kind == layout.LEASES or layout.is_pack(parts[1])):
            found[parts[0]][parts[1]] = info
    return found


def _leases(place: Place, infos: dict[str, ObjectInfo]) -> dict[str, Lease]:
    found = {}
    for name, info in infos.items():
        with suppress(NotFoundError):
            found[name] = read_lease(bytes(place.objects.get(info.key, 0, 4096)), info.modified)
    return found


def _used(place: Place, keys: ArtifactKeys) -> tuple[dict[str, set[str]], dict[str, str]]:
    """The packs that each namespace needs, and the namespaces of which that isn't known."""
    used: dict[str, set[str]] = defaultdict(set)
    held: dict[str, str] = {}
    listed = {layout.id_of(info.key) for info in place.objects.scan(layout.ARTIFACTS)}
    read = {found.id: found for found in manifests(place, keys)}
    for artifact in filter(None, listed - read.keys()):
        # Dropped a moment ago, or the store shows it to its lists alone.
        held[layout.parse_id(artifact).namespace] = f"{artifact} is listed, and can't be read"
    for found in read.values():
        namespace = layout.parse_id(found.id).namespace
        if found.manifest is None:
            held[namespace] = found.problem
        else:
            used[namespace].update(pack.id for pack in found.manifest.packs)
    return used, held


def _leftovers(place: Place, before: float) -> list[Path]:
    """What crashes left: half-written files, and artifacts that never got a manifest."""
    if place.root is None:
        return []
    found = LocalObjects(place.root).leftovers(before)
    for folder in sorted(place.root.glob(f"{layout.ARTIFACTS}*/*/*")):
        if not (folder / layout.MANIFEST).exists() and folder.stat().st_mtime < before:
            found.append(folder)
    return found
