"""Names: of artifacts, and of the objects of a place. Pure.

An artifact is `<namespace>/<name>@<UTC stamp>-<8 hexadecimal digits>`. Objects of a place:

    artifacts/<namespace>/<name>/<stamp>-<digits>/manifest    written last, signed
    artifacts/<namespace>/<name>/<stamp>-<digits>/pieces      of a raw one: hashes of its pieces
    artifacts/<namespace>/<name>/<stamp>-<digits>/images/...  of a raw one, on local places only
    packs/<namespace>/<pack>        many chunks together
    index/<namespace>/<pack>        which chunks a pack holds; what has none is not built upon
    keys/<namespace>/<number>       the namespace's data key, wrapped
    leases/<namespace>/<writer>     somebody is writing
    condemned/<namespace>/<pack>    no manifest names it; deleted by a later sweep
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.errors import RefusedError
from kybernate.types import ArtifactId

if TYPE_CHECKING:
    from datetime import datetime

ARTIFACTS = "artifacts/"
PACKS = "packs/"
INDEX = "index/"
KEYS = "keys/"
LEASES = "leases/"
CONDEMNED = "condemned/"
CLOCKS = "clocks/"
"""What is put there tells what time it is by the place, and is deleted at once."""
KINDS = (ARTIFACTS, INDEX, PACKS, KEYS, LEASES, CONDEMNED, CLOCKS)
"""All that a place holds; each names only what stands behind it."""
MANIFEST = "manifest"
PIECES = "pieces"
IMAGES = "images"

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_ID = re.compile(
    rf"({_LABEL})/(?=[^@]{{1,253}}@)({_LABEL}(?:\.{_LABEL})*)@([0-9]{{8}}T[0-9]{{6}}Z-[0-9a-f]{{8}})"
)
_NAMESPACE = re.compile(_LABEL)
_PACK = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]{0,199}")
_STAMP = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class Parts:
    """An artifact's ID, taken apart; `moment` is `<stamp>-<digits>`."""

    namespace: str
    name: str
    moment: str


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object of a place: `size` in bytes, `modified` in seconds since 1970 by the place."""

    key: str
    size: int
    modified: float


def make_id(namespace: str, name: str, at: datetime, salt: int) -> ArtifactId:
    """A new ID; `salt` keeps two of one second apart. Raises RefusedError for bad names."""
    made = ArtifactId(f"{namespace}/{name}@{at.strftime(_STAMP)}-{salt & 0xFFFFFFFF:08x}")
    parse_id(made)
    return made


def parse_id(text: str) -> Parts:
    """The parts of an ID. Raises RefusedError, saying how one looks."""
    found = _ID.fullmatch(text)
    if found is None:
        raise RefusedError(
            f"{text[:300]!r} is no artifact; they are named "
            "<namespace>/<name>@<YYYYMMDD>T<hhmmss>Z-<8 hexadecimal digits>"
        )
    return Parts(*found.groups())


def check_namespace(namespace: str) -> str:
    """The namespace as it is. Raises RefusedError if none can be called so."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise RefusedError(
            f"{namespace[:100]!r} is no namespace; names are lower-case letters, digits and -"
        )
    return namespace


def folder(artifact: str) -> str:
    """Where an artifact's own objects are, with / at the end. Raises RefusedError."""
    parts = parse_id(artifact)
    return f"{ARTIFACTS}{parts.namespace}/{parts.name}/{parts.moment}/"


def manifest_key(artifact: str) -> str:
    """The manifest's object. Raises RefusedError for what is no ID."""
    return folder(artifact) + MANIFEST


def id_of(key: str) -> ArtifactId | None:
    """The artifact whose manifest this object would be, or None."""
    parts = key.split("/")
    if len(parts) != 5 or parts[0] + "/" != ARTIFACTS or parts[4] != MANIFEST:
        return None
    text = f"{parts[1]}/{parts[2]}@{parts[3]}"
    return ArtifactId(text) if _ID.fullmatch(text) else None


def pack_of(key: str, prefix: str) -> str | None:
    """The pack that an object below `prefix` (which ends with /) is about, or None."""
    name = key.removeprefix(prefix)
    return name if key != name and is_pack(name) else None


def is_pack(name: str) -> bool:
    """Whether a pack can be called so."""
    return _PACK.fullmatch(name) is not None


def is_file(name: str) -> bool:
    """Whether an artifact's file may be called so: no path, nothing hidden."""
    return _FILE.fullmatch(name) is not None
