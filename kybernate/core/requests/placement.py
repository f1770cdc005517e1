"""What a TierPlacement needs next. Pure.

    an artifact is selected   it is pinned from now on: agents see its name in the status; what NVMe
                              alone has only where pins have room there
    a copy is wanted          its operation's name is written; then its node's agent is asked
    a copy is there           as the registry has it, or by its agent's word until then

Nothing is asked of an agent before the status says so: agents and the registry let nobody copy what
no status names. Each copy is made again, later each time, for as long as it is wanted.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.artifacts.listed import VERIFIED
from kybernate.core.reasons import DONE, OPEN, OVER, Reasoned
from kybernate.core.requests.checkpoint import PACE, Operation, Trouble
from kybernate.core.requests.pins import choose, takes
from kybernate.core.seat.operations import Progress
from kybernate.dataclass import dataclass
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from kybernate.core.artifacts.listed import Listed
    from kybernate.core.policy.effective import Label
    from kybernate.core.requests.checkpoint import Problem
    from kybernate.core.requests.pins import NoRoom, Takes

OPERATION = "tpl-"
"""Before a digest: the name of a copy's operation on its agent."""
MOST_ARTIFACTS, MOST_COPIES = 100, 256
AT_ONCE = 4
"""Copies of one TierPlacement that are under way at a time, and one on a node."""
LOOK_S = 2.0
WAIT_S = 30.0
CONFIRM_S = 120.0
"""Seconds in which the registry has to hear of a copy that its agent says is there."""
_MOST_WAIT_S = 3600.0
"""Seconds for which a copy may wait for others of its node, which brings one after the other: given
up before, it would wait behind all of them again."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0
_LONGEST_LEFT = 30 * 86_400.0
_LONGEST_WHY = 500
_MOST_BYTES = (1 << 63) - 1


class PlacementReason(Reasoned):
    """Reasons of the condition Ready of a TierPlacement."""

    PLACED = "Placed", DONE, "every copy that is wanted is there"
    NO_ARTIFACTS = "NoArtifacts", OPEN, "no artifact of the namespace has these labels"
    COPYING = "Copying", OPEN, "copies are being made"
    WAITING = "Waiting", OPEN, "copies wait for something; the message says for what"
    NO_NODES = "NoNodes", OPEN, "no node whose agent is known has these labels"
    NO_ROOM = (
        "NoRoomToPin",
        OPEN,
        "pins may take no more of a node's NVMe (pins_nvme_percent); it is tried again",
    )
    COPY_FAILED = "CopyFailed", OPEN, "a copy could not be made, and is tried again"
    ENDED = "PinEnded", OVER, "its time (spec.pinnedUntil) is over: it keeps nothing any more"
    NO_REGISTRY = "NoRegistry", OPEN, "the controller has no registry (registry_url)"
    INVALID = "Invalid", OVER, "it says what can't be; the message names the field"


class CopyState(StrEnum):
    """How far a copy is."""

    WAITING = "Waiting"
    COPYING = "Copying"
    THERE = "There"


class OnNodes(NamedTuple):
    """On whose NVMe: nodes with these labels, so many of them, 0 for all."""

    labels: tuple[Label, ...]
    number: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy. `node`: whose NVMe it is to lie on, or whose agent puts it into the object store,
    empty until that is known. `operation`: its name on that agent, empty for none; `tries`: how
    many came to nothing, and `not_before` when the next may begin. Times in seconds since 1970."""

    artifact: str
    tier: Tier
    node: str = ""
    state: CopyState = CopyState.WAITING
    operation: str = ""
    tries: int = 0
    not_before: float = 0.0
    began_at: float = 0.0
    done: int = 0
    total: int = 0
    message: str = ""

    @property
    def key(self) -> tuple[str, Tier, str]:
        """What it is, whoever makes it."""
        return self.artifact, self.tier, self.node if self.tier is Tier.NVME else ""


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """What the object says, as of a `generation` of its spec. `artifacts` are pinned."""

    reason: PlacementReason | None = None
    message: str = ""
    generation: int = 0
    matched: int = 0
    artifacts: tuple[str, ...] = ()
    copies: tuple[Copy, ...] = ()

    @property
    def there(self) -> int:
        """How many copies are."""
        return sum(one.state is CopyState.THERE for one in self.copies)

    @property
    def placed(self) -> int:
        """How many artifacts have every copy that is wanted."""
        lacking = {one.artifact for one in self.copies if one.state is not CopyState.THERE}
        return len(self.artifacts) - len(lacking)

    def progress(self, now: float) -> tuple[int, int, float]:
        """Bytes done and bytes of all copies that are under way, and when the last is expected to
        be there, in seconds since 1970, 0.0 where nobody can tell."""
        rows = [one for one in self.copies if one.state is CopyState.COPYING and one.total]
        # What agents tell may be anything: no status has a larger number.
        done, total = (
            min(sum(parts), _MOST_BYTES)
            for parts in ([one.done for one in rows], [one.total for one in rows])
        )
        left = [
            (now - one.began_at) * (one.total - one.done) / one.done for one in rows if one.done
        ]
        at = now + min(max(left), _LONGEST_LEFT) if left and len(left) == len(rows) else 0.0
        return done, total, at


@dataclass(frozen=True, slots=True)
class Placement:
    """A TierPlacement. `newest`: so many of those that match, the newest; `pinned_until` in seconds
    since 1970, None for as long as it is there; `generation`: of its spec."""

    uid: str
    namespace: str
    name: str
    selector: tuple[Label, ...]
    newest: int
    object: bool
    nvme: OnNodes | None
    pinned_until: float | None
    generation: int
    status: PlacementStatus


class Candidate(NamedTuple):
    """An artifact of the namespace that the registry knows. `labels` are None where it isn't among
    those that are shown, so that nobody can tell."""

    listed: Listed
    labels: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class SeenPlacement:
    """A TierPlacement, and what was seen for it. `nodes`: the labels of those whose agents are
    known; `operations`: those that its status names, by name, None for one that its agent doesn't
    know. `others` and `room`: see `pins.choose`."""

    placement: Placement
    artifacts: Sequence[Candidate]
    nodes: Mapping[str, Mapping[str, str]]
    operations: Mapping[str, Operation | Problem | None]
    others: Collection[str] = ()
    room: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """What to do. `begin`: copies whose agents are to be asked, which the status had before;
    `cancel`: copies that are wanted no more. `again`: seconds until the next look; `takes`: what
    its pins take of NVMe alone."""

    status: PlacementStatus
    begin: tuple[Copy, ...] = ()
    cancel: tuple[Copy, ...] = ()
    again: float = math.inf
    takes: Takes = field(default_factory=dict)


def decide(seen: SeenPlacement, now: float) -> PlacementPlan:
    """What becomes of the TierPlacement now, in seconds since 1970."""
    placement = seen.placement
    before = placement.status.copies
    running = [one for one in before if one.operation]
    if placement.pinned_until is not None and now >= placement.pinned_until:
        ended = _told(PlacementStatus(), PlacementReason.ENDED, "", placement)
        return PlacementPlan(ended, cancel=tuple(running))
    matched = [one.listed for one in seen.artifacts if _matches(placement, one)]
    pinned = placement.status.artifacts
    chosen, lacks = choose(matched, placement.newest, pinned, seen.others, seen.room)
    wanted = list(_wanted(seen, chosen))[:MOST_COPIES]
    known, listed = _by_key(before), {one.artifact: one for one in chosen}
    looked = [
        _looked_at(known.get(one.key, one), listed[one.artifact], seen, now) for one in wanted
    ]
    rows = list(_begun(looked, listed, seen, now))
    noted = {one.operation for one in rows}
    status = _summed(
        replace(
            PlacementStatus(),
            matched=len(matched),
            artifacts=tuple(sorted(listed)),
            copies=tuple(rows),
        ),
        seen,
        lacks,
    )
    asked = {one.operation for one in running}
    begin = [
        one
        for one in rows
        if one.operation in asked and one.operation and seen.operations.get(one.operation) is None
    ]
    cancel = [one for one in running if one.operation not in noted and one.state is _COPYING]
    again = _again(status, placement, asked, now)
    return PlacementPlan(status, tuple(begin), tuple(cancel), again, takes(chosen))


_COPYING = CopyState.COPYING


def _by_key(copies: Iterable[Copy]) -> dict[tuple[str, Tier, str], Copy]:
    return {one.key: one for one in copies}


def _matches(placement: Placement, one: Candidate) -> bool:
    """One whose labels nobody knows stays what it was, until the spec changes."""
    if one.labels is None:
        pinned = one.listed.artifact in placement.status.artifacts
        return pinned and placement.status.generation == placement.generation
    labels = one.labels
    return all(wanted.matches(labels) for wanted in placement.selector)


def _wanted(seen: SeenPlacement, artifacts: Sequence[Listed]) -> Iterator[Copy]:
    """The newest first; what the object store is to have before what nodes take from there."""
    placement = seen.placement
    for one in artifacts:
        if placement.object:
            yield Copy(one.artifact, Tier.OBJECT)
        if placement.nvme is not None:
            for node in _nodes(seen, placement.nvme, one):
                yield Copy(one.artifact, Tier.NVME, node)


def _nodes(seen: SeenPlacement, wish: OnNodes, one: Listed) -> list[str]:
    """Where it lies already, or was to, come first: others are chosen by a hash, so that artifacts
    spread over them."""
    fit = [n for n, labels in seen.nodes.items() if all(w.matches(labels) for w in wish.labels)]
    there = {copy.node for copy in one.copies if copy.tier == Tier.NVME and copy.state == VERIFIED}
    rows = {c.node for c in seen.placement.status.copies if c.artifact == one.artifact}

    def order(node: str) -> tuple[bool, bool, str]:
        return node not in there, node not in rows, _digest(one.artifact, node)

    chosen = sorted(fit, key=order)
    return chosen[: wish.number] if wish.number else chosen


def _looked_at(row: Copy, one: Listed, seen: SeenPlacement, now: float) -> Copy:
    """The copy as it is now."""
    if _is_there(row, one):
        return Copy(row.artifact, row.tier, row.node, CopyState.THERE)
    if not row.operation:
        return replace(row, state=CopyState.WAITING)
    found = seen.operations.get(row.operation)
    if isinstance(found, Operation):
        return _followed(row, found, one.size, now)
    said = found.sentence if found is not None else "its agent is asked"
    refused = found is not None and found.trouble is Trouble.REFUSED
    until = row.not_before or now + CONFIRM_S
    if refused or now >= until:
        # It frees its place for others; an agent of a release before this one knows no copies.
        return _failed(row, said if found is not None else f"{row.node} has not begun it", now)
    return replace(row, state=CopyState.COPYING, not_before=until, message=said[:_LONGEST_WHY])


def _followed(row: Copy, found: Operation, size: int, now: float) -> Copy:
    if found.state is Progress.SUCCEEDED:
        until = row.not_before or now + CONFIRM_S
        if now >= until:
            return _failed(row, "the registry has not heard of the copy", now)
        return replace(row, state=CopyState.THERE, not_before=until, message="")
    if found.state in (Progress.FAILED, Progress.CANCELLED):
        return _failed(row, found.sentence, now)
    if row.began_at and now - row.began_at > (most := _MOST_WAIT_S + PACE.seconds(size)):
        # Whatever its agent tells: others wait for its place.
        return _failed(row, f"its {size} bytes took {most:.0f} s", now)
    copied = found.copied
    done, total = (copied.done, copied.total) if copied else (row.done, row.total)
    told = found.sentence[:_LONGEST_WHY]
    return replace(
        row, state=CopyState.COPYING, not_before=0.0, done=done, total=total, message=told
    )


def _failed(row: Copy, why: str, now: float) -> Copy:
    pause = min(_FIRST_PAUSE_S * 2 ** min(row.tries, 16), _LONGEST_PAUSE_S)
    after = Copy(row.artifact, row.tier, row.node, tries=row.tries + 1, not_before=now + pause)
    return replace(after, message=why[:_LONGEST_WHY])


def _is_there(row: Copy, one: Listed) -> bool:
    return any(
        copy.tier == row.tier
        and copy.state == VERIFIED
        and (row.tier is Tier.OBJECT or copy.node == row.node)
        for copy in one.copies
    )


def _begun(
    rows: list[Copy], listed: Mapping[str, Listed], seen: SeenPlacement, now: float
) -> Iterator[Copy]:
    """Those that may begin have a name from now on."""
    busy = [one.node for one in rows if one.state is CopyState.COPYING]
    for row in rows:
        if row.state is not CopyState.WAITING:
            yield row
            continue
        source, why = _source(row, listed[row.artifact], seen)
        if why:
            yield replace(row, message=row.message if row.tries else why)
        elif now < row.not_before or len(busy) >= AT_ONCE or source in busy:
            yield replace(row, message=row.message or "it waits for other copies")
        else:
            busy.append(source)
            # Each try has another name: an agent remembers those that have ended.
            told = seen.placement.uid, row.artifact, row.tier.value, source, f"{now:.3f}"
            name = OPERATION + _digest(*told, size=40)
            begun = replace(row, node=source, state=CopyState.COPYING, operation=name)
            yield replace(begun, began_at=now, not_before=0.0)


def _source(row: Copy, one: Listed, seen: SeenPlacement) -> tuple[str, str]:
    """Whose agent makes the copy; else why none can now."""
    held = [copy for copy in one.copies if copy.state == VERIFIED]
    if row.tier is Tier.NVME:
        packed = any(copy.tier == Tier.OBJECT for copy in held)
        why = "it comes once the object store has a copy"
        return (row.node, "") if packed else ("", why)
    nodes = sorted(c.node for c in held if c.tier == Tier.NVME and c.node in seen.nodes)
    if not nodes:
        return "", "no node whose agent is known has a verified copy on NVMe"
    # After a failure another one is asked.
    return nodes[row.tries % len(nodes)], ""


def _summed(
    status: PlacementStatus, seen: SeenPlacement, lacks: Sequence[NoRoom]
) -> PlacementStatus:
    placement = seen.placement
    failed = next((one for one in status.copies if one.tries and one.message), None)
    wish = placement.nvme
    lost = wish is not None and not any(
        all(one.matches(labels) for one in wish.labels) for labels in seen.nodes.values()
    )
    reason, more = _of_copies(status)
    if not status.artifacts and not lacks:
        reason, more = PlacementReason.NO_ARTIFACTS, ""
    elif failed is not None and failed.state is not CopyState.THERE:
        reason = PlacementReason.COPY_FAILED
        more = f"{failed.artifact} in {failed.tier}: {failed.message}"
    elif lacks:
        reason, more = PlacementReason.NO_ROOM, _lacking(lacks)
    elif lost and reason is PlacementReason.PLACED:
        reason, more = PlacementReason.NO_NODES, "see kubectl get gpunodes"
    return _told(status, reason, more, placement)


def _of_copies(status: PlacementStatus) -> tuple[PlacementReason, str]:
    states = {one.state for one in status.copies}
    there = f"{status.there} of {len(status.copies)} copies are there"
    if CopyState.COPYING in states:
        return PlacementReason.COPYING, there
    if CopyState.WAITING in states:
        one = next(one for one in status.copies if one.state is CopyState.WAITING)
        return PlacementReason.WAITING, f"{there}; {one.artifact} in {one.tier}: {one.message}"
    return PlacementReason.PLACED, there


def _lacking(lacks: Sequence[NoRoom]) -> str:
    lack, more = lacks[0], f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
    return (
        f"{lack.artifact}{more}: pins have {lack.room} bytes left on {lack.node}, and it takes "
        f"{lack.need}; park its pod to the object store, or let other pins go"
    )


def _told(
    status: PlacementStatus, reason: PlacementReason, more: str, placement: Placement
) -> PlacementStatus:
    message = reason.told + (f" ({more})" if more else "")
    return replace(status, reason=reason, message=message, generation=placement.generation)


def _again(status: PlacementStatus, placement: Placement, asked: set[str], now: float) -> float:
    """Seconds until the next look, however little the watches tell."""
    times = [placement.pinned_until - now] if placement.pinned_until is not None else []
    for one in status.copies:
        if one.state is CopyState.COPYING:
            # A name that is new is asked for as soon as it is written.
            times.append(LOOK_S if one.operation in asked else 0.0)
        elif one.state is CopyState.WAITING:
            times.append(max(one.not_before - now, LOOK_S))
    return min([*times, WAIT_S])


def unplaced(names: Iterable[str], wanted: Collection[str]) -> Iterator[str]:
    """Of operations those of TierPlacements that name them no more."""
    return (name for name in names if name.startswith(OPERATION) and name not in wanted)


def _digest(*parts: str, size: int = 16) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:size]
