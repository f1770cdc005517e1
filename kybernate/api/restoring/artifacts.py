"""Artifact: what the registry knows of an artifact, for people of its namespace and for rights."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from kybernate import keys
from kybernate.api.lenient import mapping, mappings, text, texts, whole
from kybernate.api.schema import CAMEL, TIME, items, one_of
from kybernate.api.schema import text as words
from kybernate.api.schema import whole as number
from kybernate.core.artifacts.listed import MOST_COPIES, HeldCopy, Listed, labelled, object_name
from kybernate.dataclass import dataclass
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = dict[str, Any]

LATEST_MS = 253_402_300_799_000
"""The last second that a time of the API server can be, in milliseconds since 1970."""
_DEEP = (Tier.NVME, Tier.OBJECT)
_STATES = ("pending", "verified", "missing")


@dataclass(frozen=True, slots=True)
class CopyRow:
    """A copy of it."""

    __pydantic_config__ = CAMEL
    tier: Annotated[str, one_of(_DEEP)]
    state: Annotated[
        str,
        one_of(
            _STATES,
            "pending: the copy is being written, or wasn't read back yet. verified: it was read "
            "back. missing: it is lost or damaged.",
        ),
    ]
    node: Annotated[
        str, words(253, "Node that holds the copy; absent: the copy is in the object store.")
    ] = ""
    bytes: Annotated[int, number()] = 0


@dataclass(frozen=True, slots=True)
class ArtifactStatus:
    """What the registry knew when the controller last looked."""

    __pydantic_config__ = CAMEL
    artifact: Annotated[
        str, words(400, "Name of the artifact, as in kyb.ai/restore-from.", least=1)
    ]
    pod: Annotated[str, words(253, "Name of the pod whose state the artifact is.")] = ""
    pod_uid: Annotated[str, Field(alias="podUID"), words(128)] = ""
    model: Annotated[str, words(1024, "The model that the pod serves.")] = ""
    bytes: Annotated[int, number(told="Size of the artifact (bytes); a copy may take less.")] = 0
    taken_at: Annotated[str | None, TIME] = None
    copies: Annotated[
        tuple[CopyRow, ...], items(MOST_COPIES, "atomic", "Places that hold the artifact.")
    ] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """The object as a whole."""

    __pydantic_config__ = CAMEL
    status: ArtifactStatus | None = None


def dump_artifact(one: Listed) -> Json:
    """The object, as it is created; `labels` and `status` are what may change later."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.ARTIFACT_KIND,
        "metadata": {
            "name": object_name(one.artifact),
            # One that no label can have is left out, and taken away by a merge.
            "labels": {name: value or None for name, value in labels_of(one).items()},
        },
        "status": {
            "artifact": one.artifact,
            "pod": one.pod,
            "podUID": one.pod_uid,
            "model": one.model,
            "bytes": one.size,
            "takenAt": _stamp(one.created_ms),
            "copies": [_row(copy) for copy in one.copies],
        },
    }


def labels_of(one: Listed) -> dict[str, str]:
    """The labels of its object; empty for what no label can have as its value."""
    labels = {
        keys.MOMENT_LABEL: one.moment,
        keys.OF_POD_LABEL: one.pod,
        keys.OF_OWNER_LABEL: one.owner,
        keys.TIER_LABEL: one.tier,
        keys.OF_POLICY_LABEL: one.policy,
        keys.MODEL: one.model,
    }
    return {name: labelled(value) for name, value in labels.items()}


def read_artifact(item: Mapping[str, Any]) -> Listed | None:
    """What an object says; None if it says nothing that this version can read. Pure."""
    labels, status = texts(mapping(item.get("metadata")).get("labels")), mapping(item.get("status"))
    if not (artifact := text(status.get("artifact"))):
        return None
    try:
        taken = datetime.fromisoformat(text(status.get("takenAt")))
    except ValueError:
        return None
    # One that an older controller wrote lacks labels, and is written again.
    model = text(status.get("model"))
    model = model if labels.get(keys.MODEL, "") == labelled(model) else ""
    copies = tuple(
        HeldCopy(text(one.get("tier")), text(one.get("node")), text(one.get("state")), size)
        for one in mappings(status.get("copies"))
        for size in (whole(one.get("bytes")),)
    )
    found = Listed(
        artifact,
        text(status.get("pod")),
        text(status.get("podUID")),
        model,
        whole(status.get("bytes")),
        round(taken.timestamp() * 1000),
        copies,
        labels.get(keys.OF_OWNER_LABEL, ""),
        labels.get(keys.OF_POLICY_LABEL, ""),
    )
    return found._replace(selectable=labels.get(keys.MOMENT_LABEL) == found.moment)


def _row(copy: HeldCopy) -> Json:
    row = {"tier": copy.tier, "state": copy.state, "bytes": copy.size}
    return {**row, "node": copy.node} if copy.node else row


def _stamp(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None)
    return f"{at.isoformat(timespec='milliseconds')}Z"
