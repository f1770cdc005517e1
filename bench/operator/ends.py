"""What a run came to, in names that are the same in each run; and how two runs differ. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Json = dict[str, Any]

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SLOT = re.compile(r"-[0-9a-f]{10}-\d{8}-\d{6}\b")
_MOVE = re.compile(r"\b(balance-.+?)-\d{7,}\b")
_BUILD = re.compile(r"(template-\d+)-[0-9a-f]{6}-")
_ARTIFACT = re.compile(r"@?\d{8}[tT]\d{6}[zZ]-")

Thing = tuple[str, ...]
"""A kind, a name, and facts."""


class Ends(NamedTuple):
    """`there`: what there is in the end, with what is to be said of it. `done`: how often each act
    was done: an operation begun, an object made, a Deployment scaled."""

    there: frozenset[Thing]
    done: Counter[Thing]


class Compared(NamedTuple):
    """`twice`: acts that were done more often than in the other run; `different`: what is there in
    one of them alone."""

    twice: tuple[Thing, ...]
    different: tuple[Thing, ...]


def compared(calm: Ends, other: Ends) -> Compared:
    """How the other run differs from the calm one."""
    more = other.done - calm.done
    return Compared(tuple(sorted(more.elements())), tuple(sorted(calm.there ^ other.there)))


def named(text: str, names: Mapping[str, str]) -> str:
    """A name without what is another one in each run: namespace, UIDs, digests of them, times."""
    found = text
    while _UID.search(found):  # what a UID names may be named by another one
        found = _UID.sub(lambda uid: names.get(uid[0], "?"), found)
    found = _MOVE.sub(r"\1-slot", found)
    return _ARTIFACT.sub("@", _BUILD.sub(r"\1-", _SLOT.sub("-slot", found.rpartition("/")[2])))


def thing(plural: str, item: Json, names: Mapping[str, str]) -> Thing:
    """An object in the end."""
    meta, spec = item["metadata"], item.get("spec") or {}
    status = item.get("status") or {}
    facts = [plural, named(meta["name"], names)]
    facts += [f"{one['type']}={one['status']}/{one.get('reason', '')}" for one in _told(status)]
    if plural == "pods":
        notes = meta.get("annotations", {})
        # Each run has nodes of its own that do the same.
        facts += [str(spec.get("nodeName")).rstrip("0123456789"), notes.get("kyb.ai/group", "")]
        facts.append("leaving" if "deletionTimestamp" in meta else "")
    if plural == "deployments":
        facts.append(str(spec["replicas"]))
    for name in ("artifact", "pod", "movesDone", "copiesThere", "scaledUpTime"):
        value = status.get(name)
        told = value.get("name", "") if isinstance(value, dict) else value
        if told is not None:
            facts.append(name if name == "scaledUpTime" else named(str(told), names))
    return tuple(facts)


def ends(
    objects: Iterable[tuple[str, Json]],
    uids: Mapping[tuple[str, str], Iterable[str]],
    scaled: Mapping[str, Iterable[int]],
    operations: Iterable[Any],
    names: Mapping[str, str],
    namespace: str,
) -> Ends:
    """Of one run, in a namespace. `operations` are agents'; those of pods and artifacts that are
    not of this run don't count."""
    there = {thing(plural, item, names) for plural, item in objects}
    done: Counter[Thing] = Counter()
    for (plural, name), every in uids.items():
        done[plural, named(name, names)] += len(tuple(every))
    for name, numbers in scaled.items():
        for number in numbers:
            done["scaled", name, str(number)] += 1
    for one in operations:
        of = names.get(one.uid, "")
        if not one.uid and one.artifact.startswith(f"{namespace}/"):
            of = one.artifact
        if of:
            made = "operation", one.kind, named(of, names), one.tier
            done[made] += 1
            there.add((*made, one.state))
    return Ends(frozenset(there), done)


def _told(status: Json) -> list[Json]:
    known = status.get("conditions") or []
    return sorted(known, key=lambda one: str(one["type"]))
