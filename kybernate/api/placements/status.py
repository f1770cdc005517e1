"""TierPlacements as the API server has them: read, and their status written. Pure."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kybernate.api.asked import READY, condition, said
from kybernate.api.events import stamp
from kybernate.api.lenient import mapping, mappings, read_selector, text, whole
from kybernate.api.pods import seconds
from kybernate.core.artifacts.placed import Placed
from kybernate.core.requests.placement import (
    MOST_ARTIFACTS,
    Copy,
    CopyState,
    OnNodes,
    Placement,
    PlacementReason,
    PlacementStatus,
)
from kybernate.errors import ConfigError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Json = dict[str, Any]


def read_placement(item: Mapping[str, Any]) -> Placement:
    """The TierPlacement. Raises ConfigError, naming the field, for one that says what can't be."""
    meta, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    copies = mapping(spec.get("copies"))
    newest = whole(spec.get("newest"), 10)
    if not 1 <= newest <= MOST_ARTIFACTS:
        raise ConfigError("spec.newest", f"is {newest}; write 1 to {MOST_ARTIFACTS}")
    generation = whole(meta.get("generation"), 1)
    return Placement(
        uid=text(meta.get("uid")),
        namespace=text(meta.get("namespace")),
        name=text(meta.get("name")),
        selector=read_selector(mapping(spec.get("selector")), "spec.selector"),
        newest=newest,
        object=whole(copies.get("object"), 1) > 0,
        nvme=_nvme(mapping(copies.get("nvme"))) if copies.get("nvme") is not None else None,
        pinned_until=_until(spec.get("pinnedUntil")),
        generation=generation,
        status=_read_status(mapping(item.get("status"))),
    )


def read_placed(item: Mapping[str, Any]) -> Placed:
    """What the status says for agents and the registry. A time that can't be read is never over."""
    status, spec = mapping(item.get("status")), mapping(item.get("spec"))
    rows = (row for row in mappings(status.get("copies")) if row.get("tier") == Tier.NVME.value)
    named, until = status.get("artifacts"), 0.0
    with suppress(ConfigError):
        until = _until(spec.get("pinnedUntil")) or 0.0
    return Placed(
        text(mapping(item.get("metadata")).get("namespace")),
        frozenset(map(str, named)) if isinstance(named, list) else frozenset(),
        frozenset((text(row.get("artifact")), text(row.get("node"))) for row in rows),
        until,
    )


def dump_placement_status(
    found: PlacementStatus, before: object, generation: int, now: float
) -> Json:
    """The status as the API server is to have it, given what it has (`before`)."""
    reason = found.reason or PlacementReason.WAITING
    done, total, ready_at = found.progress(now)
    return {
        "observedGeneration": generation,
        "conditions": [
            condition(
                (READY, reason, found.message),
                before,
                generation,
                now,
                true=reason.holds,
            )
        ],
        "matched": found.matched,
        "pinned": len(found.artifacts),
        "placed": found.placed,
        "copiesWanted": len(found.copies),
        "copiesThere": found.there,
        # It is merged into what is there.
        "bytesDone": done if total else None,
        "bytesTotal": total or None,
        "estimatedCompletionTime": stamp(ready_at) if ready_at else None,
        "artifacts": list(found.artifacts),
        "copies": [dict(_row(one)) for one in found.copies],
    }


def _row(one: Copy) -> Iterator[tuple[str, object]]:
    yield from (("artifact", one.artifact), ("tier", one.tier.value), ("state", one.state.value))
    told = {
        "node": one.node,
        "operation": one.operation,
        "tries": one.tries,
        "notBefore": stamp(one.not_before) if one.not_before else "",
        "beganAt": stamp(one.began_at) if one.began_at else "",
        "bytesDone": one.done,
        "bytesTotal": one.total,
        "message": one.message[:1024],
    }
    yield from ((name, value) for name, value in told.items() if value)


def _read_status(status: Json) -> PlacementStatus:
    named = status.get("artifacts")
    return PlacementStatus(
        **said(status, PlacementReason),
        generation=whole(status.get("observedGeneration")),
        matched=whole(status.get("matched")),
        artifacts=tuple(map(str, named)) if isinstance(named, list) else (),
        copies=tuple(_read_rows(status)),
    )


def _read_rows(status: Json) -> Iterator[Copy]:
    for row in mappings(status.get("copies")):
        tier, state = text(row.get("tier")), text(row.get("state"))
        if tier not in set(Tier) or state not in set(CopyState):
            # Of a newer version; it is looked at again as if nobody had.
            continue
        yield Copy(
            text(row.get("artifact")),
            Tier(tier),
            text(row.get("node")),
            CopyState(state),
            text(row.get("operation")),
            whole(row.get("tries")),
            seconds(text(row.get("notBefore"))) or 0.0,
            seconds(text(row.get("beganAt"))) or 0.0,
            whole(row.get("bytesDone")),
            whole(row.get("bytesTotal")),
            text(row.get("message")),
        )


def _nvme(given: Json) -> OnNodes:
    where = "spec.copies.nvme.nodes"
    return OnNodes(read_selector(mapping(given.get("nodes")), where), whole(given.get("number")))


def _until(given: object) -> float | None:
    if given is None:
        return None
    try:
        return datetime.fromisoformat(text(given)).timestamp()
    except ValueError as error:
        raise ConfigError(
            "spec.pinnedUntil", f"{given!r} is no time; write one such as 2027-01-01T00:00:00Z"
        ) from error
