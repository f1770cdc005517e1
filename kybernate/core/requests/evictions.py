"""Whether a pod with a seat may be evicted now, and what has to be done before. Pure.

    nothing to save        it may
    something under way    later: an operation on its agent, or a request for the pod
    in the object store    it may, once a request says who makes a successor: that continues
    anything else          later: such a request has its agent put the state there first

No eviction waits for ever: a request has a deadline, and one that came to nothing lets the pod go.
What others have begun is waited for so long, then a request is made all the same.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Protocol

from kybernate import keys
from kybernate.core.reasons import Standing
from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.zero import is_last_step
from kybernate.core.seat.seats import shown
from kybernate.dataclass import dataclass
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from kybernate.core.requests.checkpoint import Request

EVICTION = "evict-"
"""Before a pod's UID and a number: the name of a request that is made for an eviction."""
LOST = "lost-"
"""Before a pod's UID: the name of a request that the controller makes for a pod that is lost."""

STEP = "rbal-"
"""Before the UIDs of a RebalanceRequest and of a pod: the name of a step's request."""
PREEMPTED = "preempt-"
"""Before the UIDs of a pod that waits and of one that makes room for it: the name of a request."""
ROOM_S = 300.0
"""Seconds for which the room that was made for a pod is kept from less important ones."""

_NOTHING_TO_SAVE = frozenset(
    {shown(SeatState.WAITING), shown(SeatState.FAILED), shown(SeatState.GONE)}
)
UNANSWERED_S = 30.0
"""Seconds after its deadline for which a request's end is waited for, then nobody works on it."""
OTHERS_S = 1800.0
"""Seconds for which a pod is held back by what others have begun: an agent that is away tells of an
operation as long as nobody deletes its GPUNode, and users may begin one after the other."""
_MOST_DIGITS = 9
_COUNTS_S = 600.0
"""Seconds for which a request that came to nothing lets the pod go."""
_TRIES = 3
"""How often its state may get stuck on its way before the pod goes without it."""
_NEWS_S = 30.0
"""Seconds that a GPUNode may take to tell where a state has come to rest."""
_CONTINUED_S = 3600.0
"""Seconds for which a successor is looked for: agents keep orphaned artifacts as long."""


@dataclass(frozen=True, slots=True)
class EvictedSeat:
    """The pod's seat as its GPUNode tells of it. `operation`: what is under way for it; `keeps`:
    the node has an object store."""

    uid: str
    state: str
    tier: str
    operation: str
    keeps: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether it may go, and a sentence for who evicts it, empty if there is nothing to say. `ask`:
    the name of the request that has its state put into the object store. `others`: what isn't
    begun for an eviction holds it back."""

    allowed: bool
    sentence: str = ""
    ask: str = ""
    others: bool = False


def may_go(
    seat: EvictedSeat | None,
    requests: Collection[Request],
    now: float,
    *,
    patient: bool = True,
    taken: Callable[[str], bool] = lambda _: False,
) -> Answer:
    """The answer for the pod with this seat, given the `requests` for pods of its name; `now` in
    seconds since 1970. `patient`: what others have begun is waited for. `taken`: whether a request
    of this name is there, for whatever pod."""
    if seat is None or seat.state in _NOTHING_TO_SAVE:
        return Answer(allowed=True)
    mine = [one for one in requests if one.status.pod_uid in ("", seat.uid)]
    # Anybody may give theirs such a name, and a deadline of a day.
    made = [one for one in mine if one.by == keys.WEBHOOK_USER and _number(one, seat)]
    for one in made:
        if not one.ended and one.left(now) > -UNANSWERED_S:
            return _later(f"CheckpointRequest {one.name} is {one.status.reason or 'new'}")
    if patient and (what := _begun(seat, mine)):
        return _later(what, others=True)
    safe = (seat.state, seat.tier) == (shown(SeatState.PARKED), Tier.OBJECT.value)
    if safe and any(_put_there(one) and now - one.status.ended_at < _COUNTS_S for one in mine):
        return Answer(allowed=True)
    why = "" if safe or seat.keeps else "its node has no object store"
    if any(_is_anothers(one, seat) for one in requests):
        why = "another pod has its name"
    if why:
        return _lost(why)
    return _saved_first(seat, mine, made, now, taken)


def _is_anothers(request: Request, seat: EvictedSeat) -> bool:
    """Whether it was made for this seat, and the controller found another pod of its name: this one
    is no more, whatever a node tells of it."""
    made = request.by == keys.WEBHOOK_USER and _number(request, seat)
    return bool(made) and request.status.pod_uid not in ("", seat.uid)


def _begun(seat: EvictedSeat, requests: Iterable[Request]) -> str:
    """What is under way for it, in a sentence. What has not begun is not waited for: it may queue,
    or wait for an agent, for a day."""
    if seat.operation:
        return f"{seat.operation} is under way for it"
    begun = (one for one in requests if not one.ended and one.status.began_at)
    return next((f"CheckpointRequest {one.name} is {one.status.reason}" for one in begun), "")


def _saved_first(
    seat: EvictedSeat,
    mine: Sequence[Request],
    made: Sequence[Request],
    now: float,
    taken: Callable[[str], bool],
) -> Answer:
    last = max(made, key=lambda one: _number(one, seat), default=None)
    if last is not None and (settled := _settled(last, made, now)):
        return settled
    if any(continues(one) and now - one.status.ended_at < _NEWS_S for one in mine):
        # Its node is yet to tell that somebody else's request has put it there.
        return _later("its state was just put there")
    theirs = {one.name for one in mine}
    numbers = count(1 + (_number(last, seat) if last else 0))
    names = (f"{EVICTION}{seat.uid}-{number}" for number in numbers)
    ask = next(one for one in names if one not in theirs and not taken(one))
    # What lies there already is asked for, too: the request names whose successor continues.
    return Answer(allowed=False, sentence=_told("its state is put there now"), ask=ask)


def _number(request: Request, seat: EvictedSeat) -> int:
    """Which of those for the eviction of this pod it is, by its name; 0 for none of them."""
    before, _, number = request.name.rpartition("-")
    is_one = before == f"{EVICTION}{seat.uid}" and number.isascii() and number.isdigit()
    return int(number) if is_one and len(number) <= _MOST_DIGITS else 0


def _settled(last: Request, made: Sequence[Request], now: float) -> Answer | None:
    """What the last request that was `made` for it settles; None if another one is to be made."""
    if not last.ended:
        return _lost(f"nobody works on {last.name}; see whether kyb-controller runs")
    status, ago = last.status, now - last.status.ended_at
    if status.reason is Reason.NOT_LET_GO:
        # Its state is not put away yet, and may be at any moment.
        return None
    if status.reason is Reason.STALLED and _stalls(made) < _TRIES:
        return None
    success = status.reason is not None and status.reason.standing is Standing.SUCCESS
    if not (success and status.outcome and status.outcome.tier == Tier.OBJECT.value):
        return _lost(f"{last.name}: {status.message}") if ago < _COUNTS_S else None
    # Its node is yet to tell, or it was woken since.
    return _later(f"{last.name} is done") if ago < _NEWS_S else None


def _stalls(made: Iterable[Request]) -> int:
    return sum(one.status.reason is Reason.STALLED for one in made)


def _later(why: str, *, others: bool = False) -> Answer:
    return Answer(allowed=False, sentence=_told(why), others=others)


def unasked(name: str, why: str) -> Answer:
    """The answer once the request of this name could not be made for as long as it would have."""
    return _lost(f"CheckpointRequest {name} can't be made{why and f': {why}'}")


def _told(why: str) -> str:
    return f"it goes once its state is in the object store: {why}"


def _lost(why: str) -> Answer:
    return Answer(allowed=True, sentence=f"its state goes with it: {why}")


class Seen(Protocol):
    """What is known of pods and their artifacts."""

    def stays(self, uid: str, node: str) -> bool:
        """Whether nobody is to continue in the place of the pod with this UID, which was on this
        node: it is there and isn't ending, or its node tells of no artifact of it."""
        ...

    def untaken(self, uid: str, successor: str) -> bool:
        """Whether the successor of the pod with this UID has gone and left the artifact there: it
        never continued from it, or else it would be dropped."""
        ...


def lost_pod(request: Request) -> str:
    """The UID of the pod that is lost, if the request is made for one; else empty."""
    made = request.by == keys.CONTROLLER_USER and request.name.startswith(LOST)
    return request.name.removeprefix(LOST) if made else ""


def predecessor(uid: str, requests: Iterable[Request], seen: Seen, now: float) -> Request | None:
    """From which eviction the new pod `uid` continues, of the `requests` for pods of its owner;
    None if it begins again. The one that names it already, or else the oldest that nobody has; of a
    pod that several are for, such as one that is drained and lost, one successor is all there is.
    """
    every = [*requests]
    unused = _unused(every)
    known = [one for one in every if _state(one) not in unused]
    left = [one for one in known if continues(one) and _is_recent(one, now)]
    mine = next((one for one in left if one.successor == uid), None)
    if mine is not None:
        return mine
    # A successor that was put away itself has continued: nodes may be late to tell what it needs no
    # more, and its own successor continues from its newer state.
    continued = {one.status.pod_uid for one in known if one.ended and continues(one)}
    taken = {
        one.status.pod_uid
        for one in known
        if one.successor in continued or _is_taken(one, unused, seen)
    }
    free = [one for one in left if one.status.pod_uid not in taken and _is_free(one, seen)]
    return min(free, key=lambda one: (one.status.ended_at, one.uid), default=None)


def _is_recent(request: Request, now: float) -> bool:
    if not request.ended:
        return True
    # What is scaled to zero waits for a request, and who made room until there is a seat again,
    # however long that takes.
    waits = is_last_step(request) or is_preemption(request)
    return waits or now - request.status.ended_at < _CONTINUED_S


def _is_free(request: Request, seen: Seen) -> bool:
    uid, node = request.status.pod_uid, request.status.node
    if lost_pod(request) and request.ended:
        # The registry was asked what there is: its node may have gone before it told.
        node = ""
    return not seen.stays(uid, node)


def _is_taken(request: Request, unused: Collection[tuple[str, str]], seen: Seen) -> bool:
    after = request.successor
    if not after or seen.untaken(request.status.pod_uid, after):
        return False
    # Its successor was put away with this very state, with which it never continued.
    return (after, _state(request)[1]) not in unused or seen.stays(after, "")


def _unused(requests: Iterable[Request]) -> frozenset[tuple[str, str]]:
    """Pods that were put away with a state that isn't their own, but that of the first pod that was
    put away with it: each has the state's name beside it."""
    made: dict[str, str] = {}
    found = sorted(
        (one for one in requests if _put_there(one)), key=lambda one: one.status.ended_at
    )
    states = [(uid, name) for uid, name in map(_state, found) if name]
    return frozenset((uid, name) for uid, name in states if made.setdefault(name, uid) != uid)


def _state(request: Request) -> tuple[str, str]:
    """The pod of the request, and the name of what it has put away, empty for nothing."""
    outcome = request.status.outcome
    return request.status.pod_uid, outcome.artifact if outcome else ""


def is_preemption(request: Request) -> bool:
    """Whether the controller has made it to put a pod's state away for a more important one. Anyone
    may choose the name, and the request that wakes the pod again has one like it."""
    made = request.name.startswith(PREEMPTED) and request.by == keys.CONTROLLER_USER
    return made and request.mode is Mode.EVICT


def is_for_others(request: Request) -> bool:
    """Whether the controller has made it so that other pods get room or a node is emptied."""
    return is_preemption(request) or is_step(request)


def is_step(request: Request) -> bool:
    """Whether the controller has made it for a RebalanceRequest. Anyone may choose the name."""
    return request.name.startswith(STEP) and request.by == keys.CONTROLLER_USER


def continues(request: Request) -> bool:
    """Whether a successor may continue from what this request has put away, or finds once it is
    known that a lost pod has stopped: till then the successor's agent waits."""
    status = request.status
    if lost_pod(request) and not request.ended:
        return bool(status.owner)
    return _put_there(request) and bool(status.owner)


def _put_there(request: Request) -> bool:
    """Whether it has ended with its pod's state in the object store."""
    status = request.status
    in_store = status.outcome is not None and status.outcome.tier == Tier.OBJECT.value
    return status.reason is Reason.EVICTED and in_store
