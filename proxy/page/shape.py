"""What the page shows, as JSON: one pure function for a cluster's proxy and for one box.

docs/reference/serving/page.md lists the fields; VERSION changes with what is taken away or means
something else. `changes` tells what differs since the last time, as a JSON merge patch (RFC 7396).
"""

from __future__ import annotations

from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from kybernate.api.turns import ALWAYS, ON_REQUEST
from kybernate.core.seat.seats import OCCUPYING, shown
from kybernate.dataclass import dataclass
from kybernate.types import SeatState
from proxy.page.rates import ALL, Rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.actions import Client, SeatView
    from proxy.page.history import History, Span

    Json = dict[str, Any]
    Held = Mapping[str, Iterable[SeatView]]

VERSION = 1


@dataclass(frozen=True, slots=True)
class Lane:
    """GPU memory that one seat at a time, or several that fit, lie in: a GPU of a box, or a group
    of GPUs of a node. `memory` in bytes, 0 where it isn't known; `others`: bytes of it that
    processes of no seat have."""

    id: str
    name: str
    node: str
    product: str = ""
    memory: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True)
class Extra:
    """What only a box knows of a seat. `size`: bytes that it has of GPU memory, or has put away.
    `wake`: as of `ModelRow.wake_s`."""

    lanes: tuple[str, ...]
    size: int
    wake: float | None
    pinned: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """What is behind the seats. `lanes` and `extras`, by a model's full name, are empty in a
    cluster: there each group of a node is a lane. `acts`: what may be done with a model here;
    `commands`: whether commands are shown that do it, to be run by people with rights of their own;
    `logs`: whether what models write can be read here."""

    title: str
    acts: tuple[str, ...] = ()
    commands: bool = False
    logs: bool = False
    lanes: tuple[Lane, ...] = ()
    extras: Mapping[str, Extra] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Requests that wait for a model, and how long those may still (s), None if nobody knows."""

    number: int = 0
    left: float | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What a proxy knows now: its seats, who waits for which model, and what it remembers.

    `names`: the shortest name of each model that the client may ask, by its full one.
    """

    now: float
    seats: tuple[SeatView, ...]
    names: Mapping[str, str]
    waiting: Mapping[str, Waiting]
    rates: Mapping[str, Rate]
    history: History


def page(scene: Scene, known: Known, client: Client) -> Json:
    """All that this client may see, but for what was before."""
    views = [one for one in known.seats if client.may(one.info.namespace)]
    held = _held(scene, views)
    seats = {one.info.uid: _seat(one, scene, known, held) for one in views}
    return {
        "version": VERSION,
        "title": scene.title,
        "acts": list(scene.acts),
        "commands": scene.commands,
        "logs": scene.logs,
        "lanes": _lanes(scene, views),
        "models": {
            full: _model(name, known.waiting.get(full, Waiting()), known.rates.get(full, Rate()))
            for full, name in known.names.items()
        },
        "total": _rate(known.rates.get(ALL, Rate())),
        "seats": seats,
    }


def spans(scene: Scene, some: Iterable[Span], client: Client) -> list[Json]:
    """What the timeline shows of the past: who was in GPU memory, from when to when."""
    return [
        {
            "seat": one.seat.uid,
            "model": one.seat.route,
            "lanes": _lanes_of(one.seat.route, one.seat.node, one.seat.group, scene),
            "state": one.state,
            "begin": round(one.begin, 3),
            "end": round(one.end, 3),
        }
        for one in some
        if client.may(one.seat.namespace)
    ]


def changes(old: Json, new: Json) -> Json:
    """The JSON merge patch from one to the other; empty if nothing differs. No value of ours is
    null but where a key is left out for it."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            patch[key] = changes(before, value)
        else:
            patch[key] = value
    return patch


def _lanes(scene: Scene, views: Iterable[SeatView]) -> Json:
    if scene.lanes:
        return {one.id: _without_id(one) for one in scene.lanes}
    groups = sorted({(one.info.node, one.info.group) for one in views})
    return {
        _lane_id(node, group): _without_id(Lane(_lane_id(node, group), group, node))
        for node, group in groups
    }


def _without_id(lane: Lane) -> Json:
    told = asdict(lane)
    del told["id"]
    return told


def _lane_id(node: str, group: str) -> str:
    return f"{node}/{group}"


def _lanes_of(route: str, node: str, group: str, scene: Scene) -> list[str]:
    extra = scene.extras.get(route)
    if extra is not None:
        return list(extra.lanes)
    return [] if scene.lanes else [_lane_id(node, group)]


def _held(scene: Scene, views: Iterable[SeatView]) -> dict[str, list[SeatView]]:
    """Who is in each lane."""
    found: dict[str, list[SeatView]] = {}
    for one in views:
        if one.info.state in OCCUPYING:
            for lane in _lanes_of(one.info.route, one.info.node, one.info.group, scene):
                found.setdefault(lane, []).append(one)
    return found


def _why(one: SeatView, lanes: Iterable[str], scene: Scene, held: Held) -> str:
    """A sentence on its state; if requests wait for it, on who is in its GPUs. Of those, only the
    client's own are known here."""
    others = {other.info.uid: other for lane in lanes for other in held.get(lane, ())}
    if not one.waiting or not others or one.info.uid in others:
        return one.info.reason
    told = ", ".join(_holds(other, scene) for other in others.values())
    return f"waits for its GPUs: {told}"


def _holds(one: SeatView, scene: Scene) -> str:
    extra = scene.extras.get(one.info.route)
    if extra is not None and extra.pinned:
        return f"{one.info.model} is pinned"
    requests = f" with {one.in_flight} in flight" if one.in_flight else ""
    return f"{one.info.model} is {shown(one.info.state)}{requests}"


def _seat(one: SeatView, scene: Scene, known: Known, held: Held) -> Json:
    info = one.info
    lanes = _lanes_of(info.route, info.node, info.group, scene)
    extra = scene.extras.get(info.route)
    since = known.history.since(info.uid)
    told: Json = {
        "model": info.route,
        "name": info.name,
        "namespace": info.namespace,
        "pod": info.pod.rpartition("/")[2],
        "node": info.node,
        "lanes": lanes,
        "state": shown(info.state),
        "held": info.state in OCCUPYING,
        "tier": info.tier,
        "bytes": extra.size if extra else info.size,
        "why": _why(one, lanes, scene, held),
        "turn": ALWAYS if info.weight else ON_REQUEST,
        "weight": info.weight,
        "since": round(known.now if since is None else since, 3),
        "in_flight": one.in_flight,
        "waiting": one.waiting,
        "wakes": info.wakes,
        "pinned": extra.pinned if extra else False,
        "connected": one.connected,
    }
    wake = _wake(one, extra)
    return told if wake is None else told | {"wake": round(wake, 3)}


def _wake(one: SeatView, extra: Extra | None) -> float | None:
    """Seconds until it is expected to answer if it is requested now, None if nobody knows."""
    if one.info.state is SeatState.ACTIVE:
        return 0.0
    return extra.wake if extra else one.info.wake or None


def _model(name: str, waiting: Waiting, rate: Rate) -> Json:
    told: Json = {"name": name, "waiting": waiting.number} | _rate(rate)
    # Once the time is over nobody knows: who is in its GPUs may be pinned there.
    return told | {"left": round(waiting.left, 1)} if waiting.left else told


def _rate(rate: Rate) -> Json:
    told: Json = {"rate": rate.rate, "failed": rate.failed}
    if rate.p50 is not None and rate.p99 is not None:
        told |= {"p50": rate.p50, "p99": rate.p99}
    return told
