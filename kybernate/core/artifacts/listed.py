"""Artifacts as objects of the cluster: what there is to write so that they say what the registry
knows. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.artifacts.layout import parse_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    Key = tuple[str, str]

MOST_COPIES = 16
"""Copies that an object tells of."""

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LONGEST = 253
_PART = 200
VERIFIED, MISSING = "verified", "missing"


class HeldCopy(NamedTuple):
    """A copy of an artifact: the tier, the node that has it (empty for the object store), its state
    (pending, verified or missing), and its bytes."""

    tier: str
    node: str
    state: str
    size: int


class Listed(NamedTuple):
    """An artifact. `created_ms`: milliseconds since 1970. `owner`: the name of what made its pod,
    `policy` of the CheckpointPolicy that had it made; both are empty where nobody knows.
    `selectable`: its object has the label of its moment."""

    artifact: str
    pod: str
    pod_uid: str
    model: str
    size: int
    created_ms: int
    copies: tuple[HeldCopy, ...]
    owner: str = ""
    policy: str = ""
    selectable: bool = True

    @property
    def namespace(self) -> str:
        """The namespace that it belongs to."""
        return self.artifact.partition("/")[0]

    @property
    def moment(self) -> str:
        """The end of its name, which no other one of its namespace has."""
        return self.artifact.rpartition("@")[2]

    @property
    def tier(self) -> str:
        """The deepest tier that has a verified copy, empty if none has: the order of the words is
        that of their depth."""
        return max((one.tier for one in self.copies if one.state == VERIFIED), default="")


class Changes(NamedTuple):
    """What to write next, by namespace and name of the objects."""

    make: tuple[Listed, ...]
    change: tuple[Listed, ...]
    drop: tuple[Key, ...]


def labelled(name: str) -> str:
    """The name, or an empty one if no label can have it as its value."""
    return name if _LABEL.fullmatch(name) else ""


def object_name(artifact: str) -> str:
    """The name of the object of this artifact. Raises RefusedError if it is none."""
    parts = parse_id(artifact)
    name, moment = parts.name, parts.moment.lower()
    if len(name) + len(moment) >= _LONGEST:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = f"{name[:_PART].rstrip('-.')}-{digest}"
    return f"{name}.{moment}"


def key_of(one: Listed) -> Key:
    """Namespace and name of its object."""
    return one.namespace, object_name(one.artifact)


def changes(
    known: Iterable[Listed],
    objects: Mapping[Key, Listed | None],
    each: int,
    most: int,
    last: Collection[Key] = (),
) -> Changes:
    """What has the objects say what is `known`: all artifacts, the newest first, of which `each`
    are shown of a namespace. `objects` are there, None for one that can't be read. At most `most`
    writes; what is to go comes first, since it makes room, and those of `last` after all others, in
    that order."""
    wanted = {key_of(one): one for one in _first(known, each)}
    drop = [key for key in objects if key not in wanted]
    make = [key for key in wanted if key not in objects]
    change = [key for key, one in wanted.items() if key in objects and objects[key] != one]
    turns = {key: turn for turn, key in enumerate(last)}
    order = sorted([*drop, *make, *change], key=lambda key: turns.get(key, -1))
    now = {key: turn for turn, key in enumerate(order[:most])}
    made, changed, dropped = (
        sorted((key for key in those if key in now), key=now.__getitem__)
        for those in (make, change, drop)
    )
    return Changes(
        tuple(wanted[key] for key in made), tuple(wanted[key] for key in changed), tuple(dropped)
    )


def _first(known: Iterable[Listed], each: int) -> Iterator[Listed]:
    counts: dict[str, int] = {}
    for one in known:
        counts[one.namespace] = counts.get(one.namespace, 0) + 1
        if counts[one.namespace] <= each:
            yield one
