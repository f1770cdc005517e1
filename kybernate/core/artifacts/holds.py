"""Whether an artifact may be dropped from this node: never while anything holds it, always once
nothing does.

    seat        a seat has the artifact: it would not come back without it
    person      somebody asked for it to be kept; it ends when somebody deletes the artifact
    successor   its pod has ended; it ends when a successor has continued, or nobody came in time
    transfer    it was handed to a seat here; it ends when that seat has it, or never will
    pin         it would have been dropped, and a TierPlacement pins it; it ends with that, and the
                drop follows. It keeps one copy: NVMe's goes once the object store has one

The seats' own records say which artifacts they have (`Use`); the other holds, and a drop that has
begun, are in the `Holds` of an artifact. Each function takes one event and returns the record as it
is afterwards, the same object if nothing changes; `look` says what is to be done now. Times are
seconds since 1970. A drop that has begun is never taken back, except one from a tier for a transfer
that comes again: so nobody may continue from an artifact while `Holds.drop` is set.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError, RetryableError
from kybernate.types import ArtifactId, PodUid, Tier, of_record

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

ANYWHERE = (Tier.NVME, Tier.OBJECT)
"""All tiers that hold artifacts."""

SAVED = "saved/"
LEFT = "left/"
ARRIVED = "arrived/"
DROP = "drop/"
OUTLIVED = "outlived/"
"""Journal keys of release 0.1.0, one for each part of `Holds`: persons' holds, successors' and
transfers', drops from all tiers and drops from some."""
PINNED = "pinned/"
"""Journal keys of drops that wait for the end of a pin."""

PREFIXES = (SAVED, LEFT, ARRIVED, DROP, OUTLIVED, PINNED)

AGAIN_S = 5.0
"""Seconds between two looks at what no event tells of."""
UNPINNED_S = 60.0
"""Seconds for which a pin outlasts the TierPlacement: one that is replaced lets nothing go."""
LIGHTEN_S = 60.0
"""Seconds between two looks whether another copy lets a pinned one leave NVMe: each asks the
store."""

_OFF = "its move was called off"
_SPARE = "its successor continued from another copy"
_UNUSED = "nobody took it over in time"
_OUTLIVED = "its successor has continued since"


@dataclass(frozen=True, slots=True)
class PersonHold:
    """Kept for people, by which operation; of which pod, and its bytes by tier."""

    artifact: ArtifactId
    operation: str
    uid: PodUid
    places: Mapping[Tier, int]


@dataclass(frozen=True, slots=True)
class SuccessorHold:
    """Kept for a successor of the pod `uid`, or for `uid` itself if it is `borrowed` from another
    pod: until when, and its bytes by tier."""

    artifact: str
    namespace: str
    uid: str
    places: Mapping[str, int]
    until: float
    borrowed: bool = False


@dataclass(frozen=True, slots=True)
class TransferHold:
    """An artifact of the pod `uid`, kept for the seat of `successor`. `spare`: that one continues
    from another copy; `off`: nothing comes of it, and it goes once no other seat has it; `size`:
    its bytes; `home`: that pod's seat is, or was, on this node, too, and its artifact has come from
    nowhere; `source`: the node that it came from, as far as is known.
    `until`: how long it is kept now that the successor is gone, 0.0 while it is not."""

    artifact: str
    uid: str
    successor: str
    off: bool = False
    spare: bool = False
    size: int = 0
    home: bool = False
    until: float = 0.0
    source: str = ""

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Where this node may drop it: what came is its copy alone."""
        return ANYWHERE if self.home else (Tier.NVME,)


@dataclass(frozen=True, slots=True)
class PinHold:
    """A drop from these tiers, as they are called, that waits for the end of a pin, and why it was
    to be. `size`: bytes on NVMe; `until`: when the drop begins, 0.0 while it is pinned."""

    artifact: str
    why: str
    tiers: tuple[str, ...]
    size: int = 0
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Drop:
    """A drop that has begun."""

    why: str
    tiers: tuple[Tier, ...] = ANYWHERE

    @property
    def everywhere(self) -> bool:
        """Whether nothing is left of it, then."""
        return self.tiers == ANYWHERE


@dataclass(frozen=True, slots=True)
class Use:
    """What the node's seats want of an artifact now. `had`: one of them has it, or is about to note
    that; `taken`: the one to which it was handed has it; `needed`: one would not come back without
    it; `claimed`: one of them has it as its pod's successor; `awaited`: one waits for it, or for
    one of its pod; `owned`: the pod for which it is held has a seat. `pinned`: a TierPlacement pins
    it, or may; `size`: bytes on NVMe that seats know of."""

    had: bool = False
    taken: bool = False
    needed: bool = False
    claimed: bool = False
    awaited: bool = False
    owned: bool = False
    pinned: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Holds:
    """Of one artifact. `looked_at`: when a copy besides the pinned one on NVMe was last looked for,
    by this agent."""

    artifact: str
    person: PersonHold | None = None
    successor: SuccessorHold | None = None
    transfer: TransferHold | None = None
    drop: Drop | None = None
    pin: PinHold | None = None
    looked_at: float = -math.inf

    @property
    def held(self) -> bool:
        """Whether anything but a seat or a pin holds it; never while it is being dropped."""
        return bool(self.person or self.successor or self.transfer)

    def keeps(self, tier: Tier) -> bool:
        """Whether people keep its copy there."""
        return self.person is not None and tier in self.person.places

    def __bool__(self) -> bool:
        return self.held or self.drop is not None or self.pin is not None

    def bytes_in(self, tier: Tier) -> int:
        """What it takes there, as far as its holds tell."""
        person, successor, transfer = self.person, self.successor, self.transfer
        pin = self.pin if tier is Tier.NVME else None
        return max(
            pin.size if pin else 0,
            person.places.get(tier, 0) if person else 0,
            successor.places.get(tier.value, 0) if successor else 0,
            transfer.size if transfer and tier is Tier.NVME else 0,
        )


# --- events ---------------------------------------------------------------------------------------


def keep(one: Holds, hold: PersonHold) -> Holds:
    """Somebody wants it kept. Raises NotFoundError if it is being dropped."""
    if one.drop is not None:
        raise NotFoundError(f"{one.artifact} is being dropped: {one.drop.why}")
    return replace(one, person=hold)


def lost(one: Holds, tier: Tier) -> Holds:
    """Somebody has deleted the copy in this tier that was kept for people."""
    if one.person is None or tier not in one.person.places:
        return one
    places = {place: size for place, size in one.person.places.items() if place is not tier}
    return replace(one, person=replace(one.person, places=places) if places else None)


def forget(one: Holds, use: Use, why: str) -> Holds:
    """No person holds it any longer. Whoever else holds, has or waits for it keeps it."""
    after = replace(one, person=None)
    wanted = after.held or use.had or use.claimed or use.awaited
    return after if one.person is None or wanted else _dropped(after, Drop(why), use)


def orphan(one: Holds, hold: SuccessorHold) -> Holds:
    """A pod has ended, and a successor may come, unless it is being dropped already."""
    return replace(one, successor=hold) if one.drop is None else one


def hand(one: Holds, hold: TransferHold) -> Holds:
    """It comes, or is set aside, for a seat. Raises RetryableError if it is being dropped from
    everywhere."""
    if one.drop is not None and one.drop.everywhere:
        raise RetryableError(f"{one.artifact} is being dropped: {one.drop.why}")
    return replace(one, transfer=hold, drop=None)


def release(one: Holds, use: Use, why: str) -> Holds:
    """Its own pod's seat needs it no more; `use` is that of the other seats."""
    return one if one.held or use.claimed else _dropped(one, Drop(why), use)


def void(one: Holds, use: Use, why: str) -> Holds:
    """Nobody may continue from it: its pod has continued without it, or nobody came for it."""
    if one.person is not None:
        return replace(one, successor=None, transfer=None)
    return _dropped(one, Drop(why), use)


def outlive(one: Holds, use: Use, tiers: tuple[Tier, ...]) -> Holds:
    """Its successor has continued, and this node may drop it from these tiers."""
    if one.person is not None or not tiers:
        return replace(one, successor=None)
    return _dropped(one, Drop(_OUTLIVED, tiers), use)


def take(one: Holds, *, here: bool) -> Holds:
    """The seat that it was handed to continues from it; `here`: from the copy on NVMe, which is
    that seat's from now on."""
    if one.transfer is None:
        return one
    return replace(one, transfer=None if here else replace(one.transfer, spare=True))


def call_off(one: Holds, use: Use) -> Holds:
    """Its pod continues where it was, or a newer one has come. What the seat it was handed to
    continues from already is that seat's; what another one has goes after that; what is at home is
    its own pod's again, if that still has it."""
    if one.transfer is None or (use.taken and not one.transfer.home):
        return one
    if use.had and not one.transfer.home:
        return replace(one, transfer=replace(one.transfer, off=True))
    return _handed_back(one, one.transfer, use, _OFF)


def abandon(one: Holds, until: float) -> Holds:
    """The pod that it was handed to is gone: another may come, until then."""
    return replace(one, transfer=replace(one.transfer, until=until)) if one.transfer else one


def withdraw(one: Holds, before: Holds) -> Holds:
    """What was to come is not here: it is handed to whom it was `before`, and a drop that was taken
    back for it continues unless somebody holds it. What was called off meanwhile stays so."""
    if one.transfer is None:
        return one
    after = replace(one, transfer=before.transfer)
    return after if after.held else replace(after, drop=before.drop)


def looked(one: Holds, now: float) -> Holds:
    """Another copy is being looked for now; -inf: one has come, so look again."""
    return replace(one, looked_at=now)


def lightened(one: Holds) -> Holds:
    """What is pinned is on NVMe no more."""
    if one.pin is None:
        return one
    tiers = tuple(tier for tier in one.pin.tiers if tier != Tier.NVME)
    return replace(one, pin=replace(one.pin, tiers=tiers, size=0) if tiers else None)


def gone(one: Holds) -> Holds:
    """It was dropped from where it was to be."""
    return replace(one, drop=None)


def _handed_back(one: Holds, hold: TransferHold, use: Use, why: str) -> Holds:
    after = replace(one, transfer=None)
    return after if after.held or use.had else _dropped(after, Drop(why, hold.tiers), use)


def _dropped(one: Holds, drop: Drop, use: Use) -> Holds:
    """All holds end, and with a transfer's goes what came. A drop that has begun continues; of what
    is pinned none begins."""
    tiers = {*drop.tiers, *(one.drop.tiers if one.drop else ())}
    tiers |= {*one.transfer.tiers} if one.transfer else set()
    if one.drop is None and (use.pinned or one.pin is not None):
        return Holds(one.artifact, pin=_waiting(one, drop.why, tiers, use.size))
    first = one.drop or drop
    begun = Drop(first.why, tuple(tier for tier in ANYWHERE if tier in tiers))
    return Holds(one.artifact, drop=begun)


def _waiting(one: Holds, why: str, tiers: set[Tier], size: int) -> PinHold:
    before = one.pin or PinHold(one.artifact, why, ())
    wanted = {*before.tiers, *(tier.value for tier in tiers)}
    named = tuple(tier.value for tier in ANYWHERE if tier.value in wanted)
    return replace(before, tiers=named, size=max(one.bytes_in(Tier.NVME), size))


# --- what is to be done ---------------------------------------------------------------------------


class Do(StrEnum):
    """What `look` asks for."""

    REST = "rest"
    """Nothing, before `Step.at`, or an event if there is none."""
    DROP = "drop"
    """Drop it, as `Holds.drop` says; `gone` comes then."""
    LIGHTEN = "lighten"
    """Drop it from NVMe if another copy is verified; `looked` comes before that, and `lightened`
    once it is done."""
    ASK = "ask"
    """Ask who continues from it: its successor's time is over."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done, and when to look again at the latest."""

    do: Do
    at: float | None = None


def look(one: Holds, use: Use, now: float) -> tuple[Holds, Step]:
    """End the holds that are over, and say what follows."""
    one = _see_transfer(one, use, now)
    one = _see_borrowed(one, use, now)
    one = _see_pin(one, use, now)
    if one.drop is not None:
        return one, Step(Do.REST, now + AGAIN_S) if use.needed else Step(Do.DROP)
    if lightens(one, use) and now >= one.looked_at + LIGHTEN_S:
        return one, Step(Do.LIGHTEN)
    times = [max(one.pin.until, now + AGAIN_S)] if one.pin is not None else []
    hold = one.transfer
    if hold is not None and (hold.spare or hold.off or hold.until):
        times.append(max(hold.until, now + AGAIN_S))
    if one.successor is not None:
        free = not (one.successor.borrowed or one.transfer or use.claimed)
        if free and one.successor.until <= now:
            return one, Step(Do.ASK)
        times.append(max(one.successor.until, now + AGAIN_S))
    return one, Step(Do.REST, min(times, default=None))


def lightens(one: Holds, use: Use) -> bool:
    """Whether a pin alone keeps it on NVMe."""
    wanted = one.held or use.had or use.needed or use.claimed or use.awaited
    return one.pin is not None and Tier.NVME in one.pin.tiers and use.pinned and not wanted


def _see_transfer(one: Holds, use: Use, now: float) -> Holds:
    hold = one.transfer
    if hold is None:
        return one
    if hold.off and (hold.home or not use.had):
        return _handed_back(one, hold, use, _OFF)
    if hold.spare and not use.had:
        return _handed_back(one, hold, use, _SPARE)
    if hold.until and hold.until <= now and not use.awaited and not use.had:
        return _handed_back(one, hold, use, _UNUSED)
    return one


def _see_borrowed(one: Holds, use: Use, now: float) -> Holds:
    hold = one.successor
    over = hold is not None and hold.borrowed and hold.until <= now
    if hold is None or not over or one.transfer or use.owned or use.had:
        return one
    return outlive(one, use, tuple(Tier(tier) for tier in hold.places))


def _see_pin(one: Holds, use: Use, now: float) -> Holds:
    pin = one.pin
    if pin is None:
        return one
    until = 0.0 if use.pinned else pin.until or now + UNPINNED_S
    if not until or until > now:
        return one if until == pin.until else replace(one, pin=replace(pin, until=until))
    after = replace(one, pin=None)
    if after.held or use.had or use.claimed or use.awaited:
        return after
    return _dropped(after, Drop(pin.why, tuple(Tier(tier) for tier in pin.tiers)), use)


def newest_kept(held: Iterable[PersonHold], uids: Container[str]) -> tuple[PersonHold, ...]:
    """Of each of these pods the newest that people keep in the object store: the one of them that a
    successor may claim."""
    newest: dict[str, PersonHold] = {}
    for one in sorted(held, key=lambda one: one.artifact.rpartition("@")[2]):
        if one.uid in uids and Tier.OBJECT in one.places:
            newest[one.uid] = one
    return tuple(newest.values())


def without_kept(hold: SuccessorHold, person: PersonHold | None) -> SuccessorHold:
    """The successor's hold without the copy on NVMe if people keep that one: it doesn't go with
    it."""
    if person is None or Tier.NVME not in person.places:
        return hold
    return replace(hold, places={t: n for t, n in hold.places.items() if t != Tier.NVME.value})


# --- the journal ----------------------------------------------------------------------------------


def records(one: Holds) -> dict[str, dict[str, object]]:
    """What the journal has of it, by key."""
    found: dict[str, dict[str, object]] = {}
    if one.drop is not None:
        said: dict[str, object] = {
            "why": one.drop.why,
            "tiers": [tier.value for tier in one.drop.tiers],
        }
        found[(DROP if one.drop.everywhere else OUTLIVED) + one.artifact] = said
    if one.person is not None:
        places = {tier.value: size for tier, size in one.person.places.items()}
        found[SAVED + one.artifact] = {**asdict(one.person), "places": places}
    if one.successor is not None:
        found[LEFT + one.artifact] = asdict(one.successor)
    if one.transfer is not None:
        found[ARRIVED + one.artifact] = asdict(one.transfer)
    if one.pin is not None:
        found[PINNED + one.artifact] = {**asdict(one.pin), "tiers": [*one.pin.tiers]}
    return found


def of_records(journal: Mapping[str, Mapping[str, Any]]) -> dict[str, Holds]:
    """All that `records` has written, or an agent of release 0.1.0. A record is written before
    those that it outdates are deleted: of what an agent that died has left, a person's hold counts
    before a drop, and a drop before other holds."""
    found: dict[str, Holds] = {}
    for key, record in journal.items():
        prefix, _, artifact = key.partition("/")
        if (read := _READ.get(prefix + "/")) is not None:
            one = found.get(artifact, Holds(artifact))
            found[artifact] = read(one, record)
    for artifact, one in found.items():
        if one.person is not None:
            found[artifact] = replace(one, drop=None)
        elif one.drop is not None:
            found[artifact] = Holds(artifact, drop=one.drop)
    return found


def _person(one: Holds, record: Mapping[str, Any]) -> Holds:
    places = {Tier(tier): int(size) for tier, size in record["places"].items()}
    uid, operation = PodUid(record["uid"]), str(record["operation"])
    return replace(one, person=PersonHold(ArtifactId(one.artifact), operation, uid, places))


def _successor(one: Holds, record: Mapping[str, Any]) -> Holds:
    return replace(one, successor=of_record(SuccessorHold, record))


def _transfer(one: Holds, record: Mapping[str, Any]) -> Holds:
    return replace(one, transfer=of_record(TransferHold, record))


def _pin(one: Holds, record: Mapping[str, Any]) -> Holds:
    hold = of_record(PinHold, record)
    return replace(one, pin=replace(hold, tiers=tuple(map(str, hold.tiers))))


def _drop(one: Holds, record: Mapping[str, Any]) -> Holds:
    tiers = {Tier(tier) for tier in record.get("tiers", ANYWHERE)}
    tiers |= {*one.drop.tiers} if one.drop else set()
    why = str(record.get("why", _OUTLIVED))
    return replace(one, drop=Drop(why, tuple(tier for tier in ANYWHERE if tier in tiers)))


_READ: Mapping[str, Callable[[Holds, Mapping[str, Any]], Holds]] = {
    SAVED: _person,
    LEFT: _successor,
    ARRIVED: _transfer,
    DROP: _drop,
    OUTLIVED: _drop,
    PINNED: _pin,
}
