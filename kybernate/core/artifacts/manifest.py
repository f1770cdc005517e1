"""What a manifest says of an artifact: of which workload, for which machine, which bytes. Pure.

One format, one version; see docs/reference/artifact-layout.md. A manifest is small however large
its artifact is: it names the leaves, and leaves name the chunks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING

from kybernate.core.artifacts import codec, layout
from kybernate.core.artifacts.privileges import Privileges  # noqa: TC001 - the codec reads hints
from kybernate.core.chunks.leaf import OVERHEAD
from kybernate.core.chunks.pages import BLOCK
from kybernate.dataclass import dataclass
from kybernate.errors import CorruptError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSION = 1
RAW = "raw"
PACKED = "packed"
LARGEST = 64 << 20
"""Bytes of a manifest that are read at most."""
PIECE = 1 << 20
"""Bytes of a raw file that one hash covers."""

_HASH = re.compile(r"[0-9a-f]{64}")
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a state comes from, and what a restore must match.

    `highest_pid`: the restore must keep all PIDs up to it free. `kyb_init`: SHA-256 of the build
    that process 1 ran. `parent`: the artifact whose chunks it shares, if any. `root_pid` and
    `gpu_pids`: the numbers in the container of the tree's root and of its processes on the GPUs.
    `gpus`: UUIDs of these, in the order of the seat's group; `held`: bytes that it had on each;
    `first`: bytes of that which also a lazy restore brings in at once.
    `files_missing`: why another container can't have the files that the tree needs, or empty.
    `namespace_uid`: tells the namespace from an earlier one of its name; empty if it isn't known,
    or a shared key signs (see `encode`).
    """

    namespace: str
    pod: str
    pod_uid: str
    container: str
    image_digest: str
    spec_hash: str
    kernel: str
    criu: str
    architecture: str
    highest_pid: int
    privileges: Privileges
    gpu_product: str = ""
    gpu_count: int = 0
    driver: str = ""
    cuda: str = ""
    model: str = ""
    kyb_init: str = ""
    parent: str = ""
    root_pid: int = 0
    gpu_pids: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    held: tuple[int, ...] = ()
    first: int = 0
    files_missing: str = ""
    namespace_uid: str = ""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A chunk that lists chunks: where it is stored, and how many bytes of the file it covers.

    `pack` counts in the manifest's `packs`; `offset` and `stored` are bytes there.
    """

    name: str
    pack: int
    offset: int
    stored: int
    size: int
    covers: int


@dataclass(frozen=True, slots=True)
class File:
    """One file. `pieces`: the hash of its pieces' hashes; empty where 0.2.0 has packed it. `leaves`
    where it is packed."""

    name: str
    size: int
    pieces: str = ""
    leaves: tuple[Leaf, ...] = ()


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack that the artifact needs, and how many bytes it has."""

    id: str
    size: int


@dataclass(frozen=True, slots=True)
class DataKey:
    """The namespace's data key, wrapped by the cluster key `by`. Empty for a raw artifact."""

    number: int = 0
    by: str = ""
    wrapped: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of it. `total`: bytes of the files. `stored`: bytes that were new in the place.

    `origin`: the artifact's ID in the cluster that it was imported from. `node`: the node that
    signed it by its own key; empty if a shared key did.
    """

    version: int
    id: str
    created: str
    form: str
    facts: Facts
    files: tuple[File, ...]
    total: int
    stored: int
    packs: tuple[Pack, ...] = ()
    key: DataKey = DataKey()
    origin: str = ""
    node: str = ""


def encode(manifest: Manifest) -> bytes:
    """As JSON; what `decode` reads. 0.1.0 takes no manifest with a field that it doesn't know: so
    one that the cluster's shared key signs has no `node` and doesn't tell its namespace's UID, and
    its agents continue from it.
    """
    return codec.encode(manifest, () if manifest.node else ("node", "facts.namespace_uid"))


def decode(data: bytes, what: str = "manifest") -> Manifest:
    """The manifest. Raises CorruptError, naming the field, or UnfitError if a newer release wrote
    it in a version that this one can't read; never anything else."""
    if len(data) > LARGEST:
        raise CorruptError(f"{what}: has more than {LARGEST >> 20} MiB")
    manifest = codec.decode(Manifest, data, what, VERSION)
    for field, problem in _problems(manifest):
        raise CorruptError(f"{what}: {field} {problem}")
    return manifest


def content(files: Iterable[File]) -> str:
    """The hash of all that the files hold, in whatever form a place has them; empty where the
    hash of one's pieces isn't known."""
    said = sorted((file.name, file.size, file.pieces) for file in files)
    if not all(pieces for _, _, pieces in said):
        return ""
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode("ascii")).hexdigest()


def facts_of(raw: Mapping[str, object]) -> Facts:
    """Facts as the agent gathers them, tuples allowed for lists. Raises CorruptError, naming the
    field that is wrong."""
    facts = codec.take(Facts, _plain(raw), "facts")
    for field, problem in _facts_problems(facts):
        raise CorruptError(f"facts: {field} {problem}")
    return facts


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    if manifest.version != VERSION:
        yield "version", f"is {manifest.version}, this release reads {VERSION}"
    if manifest.form not in (RAW, PACKED):
        yield "form", f"must be {RAW} or {PACKED}"
    if not _CREATED.fullmatch(manifest.created):
        yield "created", "must be a time such as 2026-01-31T12:00:00Z"
    yield from _id_problems(manifest)
    yield from _facts_problems(manifest.facts)
    yield from _file_problems(manifest)
    yield from _pack_problems(manifest)


def _id_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for field in ("id", "origin"):
        text = getattr(manifest, field)
        try:
            parts = layout.parse_id(text) if text or field == "id" else None
        except RefusedError as error:
            yield field, str(error)
            return
        if field == "id" and parts and parts.namespace != manifest.facts.namespace:
            yield "facts.namespace", "is not the ID's"


def _facts_problems(facts: Facts) -> Iterator[tuple[str, str]]:
    for field, check in (("namespace", layout.check_namespace), ("parent", layout.parse_id)):
        try:
            if field == "namespace" or facts.parent:
                check(getattr(facts, field))
        except RefusedError as error:
            yield f"facts.{field}", str(error)


def _file_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    names = set()
    if not manifest.files:
        yield "files", "are none"
    for number, file in enumerate(manifest.files):
        where = f"files[{number}]"
        if not layout.is_file(file.name):
            yield f"{where}.name", "is no plain file name"
        if file.name in names:
            yield f"{where}.name", "occurs twice"
        names.add(file.name)
        if manifest.form == RAW and not _HASH.fullmatch(file.pieces):
            yield f"{where}.pieces", "must be a hash of 64 hexadecimal digits"
        if manifest.form == PACKED:
            yield from _leaf_problems(file, len(manifest.packs), where)
    if sum(file.size for file in manifest.files) != manifest.total:
        yield "total", "is not the sum of the files' sizes"


def _leaf_problems(file: File, packs: int, where: str) -> Iterator[tuple[str, str]]:
    for number, leaf in enumerate(file.leaves):
        if not _HASH.fullmatch(leaf.name):
            yield f"{where}.leaves[{number}].name", "must be 64 hexadecimal digits"
        if leaf.pack >= packs:
            yield f"{where}.leaves[{number}].pack", "is not in packs"
        if leaf.size > BLOCK or leaf.stored > leaf.size + OVERHEAD:
            yield f"{where}.leaves[{number}].size", "is no size of a chunk"
    if sum(leaf.covers for leaf in file.leaves) != file.size:
        yield f"{where}.size", "is not what its leaves cover"


def _pack_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for number, pack in enumerate(manifest.packs):
        if not layout.is_pack(pack.id):
            yield f"packs[{number}].id", "must be 32 hexadecimal digits"
    if manifest.form == PACKED and not (manifest.key.by and manifest.key.wrapped):
        yield "key", "is missing"
