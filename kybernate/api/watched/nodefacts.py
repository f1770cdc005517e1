"""What a GPUNode tells beside what placing needs, read from its JSON. Pure.

As in `nodeseats`, what can't be understood is left out, by itself: a node that is of another
version, or that lies, loses what it says wrongly, and no other node loses anything.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kybernate.api.events import stamp
from kybernate.api.lenient import mapping, mappings, text, whole
from kybernate.api.nodeseats import read_load
from kybernate.api.pods import seconds
from kybernate.api.shares import read_use
from kybernate.core.policy.balance import Load
from kybernate.core.requests.asked import Copied
from kybernate.core.seat.seats import shown
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.core.policy.shares import Used

    Json = dict[str, Any]

_ACTIVE = shown(SeatState.ACTIVE)
_PARKED = shown(SeatState.PARKED)


class Rest(NamedTuple):
    """A seat that rests in the object store. `since`: in seconds since 1970."""

    namespace: str
    since: float


class NodeFacts(NamedTuple):
    """`address`: host:port of its agent. `gpus`: their product and the driver's version, empty
    unless both are told. `nvme`: bytes that artifacts may take of it, 0 if that isn't told.
    `resting`: by UID of the pod; `used`: by namespace."""

    address: str = ""
    gpus: tuple[str, str] | tuple[()] = ()
    nvme: int = 0
    resting: Mapping[str, Rest] = MappingProxyType({})
    used: Mapping[str, Used] = MappingProxyType({})
    load: Load = Load()


NO_FACTS = NodeFacts()


class SeatFacts(NamedTuple):
    """What a node tells of one seat. `restored`: it serves, or has. `reason`: what it does now.
    `copied`: how much of its artifact has come, if some of it is on its way."""

    restored: bool = False
    reason: str = ""
    copied: Copied | None = None


def read_facts(node: Json) -> NodeFacts:
    """What its status says."""
    status = mapping(node.get("status"))
    gpus = _gpus(status)
    return NodeFacts(
        agent_address(node),
        gpus if all(gpus) else (),
        _nvme(status),
        dict(_resting(status)),
        {text(one.get("namespace")): read_use(one.get("used")) for one in _usage(status)},
        read_load(node),
    )


def read_seat(node: Mapping[str, Any], uid: str) -> SeatFacts:
    """What it tells of the seat of the pod with this UID."""
    seats = mappings(mapping(node.get("status")).get("seats"))
    row = next((one for one in seats if one.get("uid") == uid), {})
    done, total = row.get("copiedBytes"), whole(row.get("savedBytes"))
    return SeatFacts(
        row.get("state") == _ACTIVE or whole(row.get("wakes")) > 0,
        text(row.get("reason")),
        Copied(done, total) if total and type(done) is int else None,
    )


def agent_address(node: Mapping[str, Any]) -> str:
    """Where a GPUNode says that its agent is; empty if it doesn't."""
    return text(mapping(mapping(node.get("status")).get("agent")).get("address"))


def slim_node(item: Json) -> Json:
    """What matters of a GPUNode to who reads these facts: most of it is about seats, and changes
    all the time."""
    meta, status = item["metadata"], mapping(item.get("status"))
    names = {name: meta[name] for name in ("name", "uid", "resourceVersion") if name in meta}
    resting = dict(_resting(status))
    product, driver = _gpus(status)
    told = {
        "agent": {"address": agent_address(item)},
        "gpus": [{"product": product}],
        "driver": {"version": driver},
        "groups": mappings(status.get("groups")),
        "seats": [_slim_seat(row, resting) for row in mappings(status.get("seats"))],
        "usage": _usage(status),
        "tiers": [{"name": Tier.NVME.value, "budgetBytes": _nvme(status)}],
    }
    return {"metadata": names, "status": told}


def _slim_seat(row: Json, resting: Mapping[str, Rest]) -> Json:
    """Where it is and how busy, and more of one that rests in the object store."""
    found: Json = {name: row[name] for name in ("uid", "group", "heldBytes") if name in row}
    if busy := mapping(row.get("activity")).get("recentBusy"):
        found["activity"] = {"recentBusy": busy}
    if (rest := resting.get(text(row.get("uid")))) is not None:
        found |= {"namespace": rest.namespace, "state": _PARKED, "tier": Tier.OBJECT.value}
        found["since"] = stamp(rest.since)
    return found


def _usage(status: Json) -> list[Json]:
    return mappings(status.get("usage"))


def _nvme(status: Json) -> int:
    rows = mappings(status.get("tiers"))
    return next((whole(r.get("budgetBytes")) for r in rows if r.get("name") == Tier.NVME.value), 0)


def _resting(status: Json) -> Iterator[tuple[str, Rest]]:
    for row in mappings(status.get("seats")):
        if (row.get("state"), row.get("tier")) == (_PARKED, Tier.OBJECT.value):
            since = seconds(text(row.get("since")))
            if since is not None:
                yield text(row.get("uid")), Rest(text(row.get("namespace")), since)


def _gpus(status: Json) -> tuple[str, str]:
    product = next((one.get("product") for one in mappings(status.get("gpus"))), "")
    return text(product), text(mapping(status.get("driver")).get("version"))
