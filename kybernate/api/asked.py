"""What objects that ask for something once have in common: fields, reading, conditions. Pure."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from kybernate import keys
from kybernate.api.events import stamp
from kybernate.api.gpunodes import Condition
from kybernate.api.lenient import mapping, mappings, text, whole
from kybernate.api.schema import TIME, items
from kybernate.api.schema import text as texts
from kybernate.api.schema import whole as number
from kybernate.core.requests.asked import Copied
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from enum import StrEnum

    from pydantic import WithJsonSchema

    Json = dict[str, Any]

E = TypeVar("E", bound="StrEnum")

COMPLETE = "Complete"
"""The one condition of a request. True: it is done. False: the reason says whether more becomes of
it."""
READY = "Ready"
"""The condition of objects that count as long as they are there."""
DEADLINE_S = 600
DAY_S = 86_400
MOST_OF_POD = 200
"""Characters of a pod's name in a request's: a name may have 253."""
NAME = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LONGEST_MESSAGE = 32768

TimeToLive = Annotated[
    int | None,
    number(
        32, "Seconds after which a request that is done or has failed is deleted; absent: never."
    ),
]
RequestedBy = Annotated[str, texts(1024, "Who created it. The webhook writes it; leave it out.")]
Conditions = Annotated[
    tuple[Condition, ...],
    items(8, "type", "Complete: True once the request is done; the reason says why not."),
]


BytesDone = Annotated[
    int | None,
    number(
        told="Bytes of the artifact that have arrived where they are to be, while it is copied."
    ),
]
BytesTotal = Annotated[int | None, number(told="Size of the artifact (bytes).")]
EstimatedTime = Annotated[
    str | None, TIME, Field(description="When the rest is expected to have arrived.")
]
ProgressTime = Annotated[str | None, TIME, Field(description="When the last of these bytes came.")]
CopyRestarts = Annotated[
    int | None,
    number(
        32,
        "How often the copy began again from fewer bytes; after the fifth time only more bytes "
        "than before count as progress.",
    ),
]
_READY_AT, _SINCE = "estimatedCompletionTime", "progressTime"


def deadline(told: str, otherwise: int = DEADLINE_S) -> WithJsonSchema:
    """The field deadlineSeconds, of a day at most."""
    return number(32, told, least=1, most=DAY_S, default=otherwise)


def to_create(kind: str, meta: Json, spec: Mapping[str, Any]) -> Json:
    """An object of ours to create."""
    return {"apiVersion": keys.API_VERSION, "kind": kind, "metadata": meta, "spec": dict(spec)}


def owned_by(kind: str, name: str, uid: str) -> Json:
    """A reference to an object of ours that had another one made."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def owner_of(meta: Json, by: str, kinds: Collection[str], what: str) -> str:
    """Its owner's UID or name, if the controller has made it: anyone may name an owner, and nobody
    else by `requestedBy`, which the API server holds against the user."""
    if by != keys.CONTROLLER_USER:
        return ""
    owners = mappings(meta.get("ownerReferences"))
    return next((text(one.get(what)) for one in owners if one.get("kind") in kinds), "")


@contextmanager
def reading(
    kind: str, item: Mapping[str, Any], otherwise: int = DEADLINE_S
) -> Iterator[dict[str, Any]]:
    """What all requests have in common, for their constructors; `otherwise`: the deadline where
    none is given. Raises ConfigError, naming the object, if it or the body can't read it."""
    meta, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    kept = spec.get("ttlSecondsAfterFinished")
    try:
        yield {
            "uid": str(meta["uid"]),
            "namespace": str(meta["namespace"]),
            "name": str(meta["name"]),
            "by": text(spec.get("requestedBy")),
            "deadline_s": float(whole(spec.get("deadlineSeconds"), otherwise)),
            "keep_s": float(kept) if type(kept) is int else None,
        }
    except (KeyError, ValueError) as error:
        name = f"{kind} {meta.get('namespace')}/{meta.get('name')}"
        raise ConfigError(name, f"this version can't read it: {error}") from error


def created_at(item: Mapping[str, Any]) -> float:
    """When it was, in seconds since 1970. Raises ValueError."""
    return seconds_of(mapping(item.get("metadata")).get("creationTimestamp"))


def how_far(status: Json, reasons: type[StrEnum]) -> dict[str, Any]:
    """What all statuses have in common, for their constructors."""
    return {
        "began_at": seconds_of(status.get("startTime")),
        "ended_at": seconds_of(status.get("completionTime")),
        **said(status, reasons, COMPLETE),
    }


def said(status: object, reasons: type[StrEnum], kind: str = READY) -> dict[str, Any]:
    """Reason and message of a condition, for constructors of statuses."""
    message = text(last_condition(status, kind).get("message"))
    return {"reason": reason_of(status, reasons, kind), "message": message}


def reason_of(status: object, reasons: type[E], kind: str = READY) -> E | None:
    """What the condition of this type says; None if nothing, or what only a newer version knows."""
    reason = text(last_condition(status, kind).get("reason"))
    return reasons(reason) if reason in set(reasons) else None


def dump(
    status: Any, otherwise: StrEnum, before: object, generation: int, now: float, **times: float
) -> Json:
    """What the statuses of all requests have in common, as the API server is to have it, given what
    it has (`before`). `otherwise`: the reason where there is none yet; `times` by their fields."""
    reason: Any = status.reason or otherwise
    done = reason.holds
    complete = condition((COMPLETE, reason, status.message), before, generation, now, true=done)
    found: Json = {"observedGeneration": generation, "conditions": [complete]}
    times |= {"startTime": status.began_at, "completionTime": status.ended_at}
    if hasattr(status, "copied"):
        one = status.copied or Copied(0, 0)
        times |= {_READY_AT: one.ready_at, _SINCE: one.since}
        if one.total:
            found |= {"bytesDone": one.done, "bytesTotal": one.total}
            found |= {"copyRestarts": one.restarts} if one.restarts else {}
    for name, at in times.items():
        if at:
            found[name] = stamp(at)
        elif name in mapping(before):
            # It is merged into what is there.
            found[name] = None
    return found


def read_copied(status: Json) -> Copied | None:
    """How much has been copied, as a status says; None if it says nothing. Raises ValueError."""
    total, times = whole(status.get("bytesTotal")), (_READY_AT, _SINCE)
    ready_at, since = (seconds_of(status.get(name)) for name in times)
    done, restarts = (whole(status.get(name)) for name in ("bytesDone", "copyRestarts"))
    return Copied(done, total, ready_at, since, restarts) if total else None


def condition(
    told: tuple[str, str, str], before: object, generation: int, now: float, *, true: bool
) -> Json:
    """The condition that is `told` by its type, reason and message, given what the object's status
    was `before`."""
    kind, reason, message = told
    last, status = last_condition(before, kind), "True" if true else "False"
    return {
        "type": kind,
        "status": status,
        "reason": str(reason),
        "message": message[:_LONGEST_MESSAGE],
        "lastTransitionTime": (
            last["lastTransitionTime"] if last.get("status") == status else stamp(now)
        ),
        "observedGeneration": generation,
    }


def last_condition(status: object, kind: str = COMPLETE) -> Json:
    """The condition of this type that a status has; empty if it has none."""
    conditions = mappings(mapping(status).get("conditions"))
    return next((one for one in conditions if one.get("type") == kind), {})


def seconds_of(given: object) -> float:
    """A time since 1970; 0 for none. Raises ValueError."""
    return datetime.fromisoformat(given).timestamp() if isinstance(given, str) and given else 0.0
