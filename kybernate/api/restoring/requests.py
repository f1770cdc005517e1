"""RestoreRequest: a pod that continues from an artifact, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, WithJsonSchema

from kybernate import keys
from kybernate.api.asked import (
    DEADLINE_S,
    MOST_OF_POD,
    NAME,
    BytesDone,
    BytesTotal,
    Conditions,
    CopyRestarts,
    EstimatedTime,
    ProgressTime,
    RequestedBy,
    created_at,
    deadline,
    dump,
    how_far,
    read_copied,
    reading,
    to_create,
)
from kybernate.api.lenient import mapping, text, texts
from kybernate.api.schema import CAMEL, TIME, checked, flag, labels, one_of, rule
from kybernate.api.schema import text as words
from kybernate.api.schema import whole as number
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.core.requests.restore import RestoreReason, RestoreRequest, RestoreStatus
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = dict[str, Any]

_TEMPLATE = WithJsonSchema(
    {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "description": "The new pod's metadata and spec, as in a Deployment; absent: those of the "
        "artifact's pod, which must still exist.",
    }
)


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What is restored: an artifact, the newest one of a pod, or that of a SnapshotTemplate."""

    __pydantic_config__ = checked(
        rule(
            "[has(self.artifact), has(self.pod), has(self.template)].filter(x, x).size() == 1",
            "name one of artifact, pod and template",
        ),
        rule(
            "!has(self.template) || !has(self.__namespace__)",
            "a SnapshotTemplate is one of this namespace; leave namespace out",
        ),
    )
    artifact: Annotated[str | None, words(253, "Name of the Artifact.", least=1, pattern=NAME)] = (
        None
    )
    pod: Annotated[
        str | None,
        words(253, "Name of the pod whose newest artifact is restored.", least=1, pattern=NAME),
    ] = None
    template: Annotated[
        str | None,
        words(
            253,
            "Name of the SnapshotTemplate whose artifact is restored. The pod is made as the "
            "SnapshotTemplate says, unless spec.template is there.",
            least=1,
            pattern=NAME,
        ),
    ] = None
    namespace: Annotated[
        str | None,
        words(
            63,
            "Namespace of the artifact or pod; absent: this one. Another one needs an "
            "ArtifactGrant there.",
            least=1,
            pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class RestoreSpec:
    """What is asked for."""

    __pydantic_config__ = checked(
        rule(
            "!has(self.stopped) || !self.stopped || self.__as__ == 'clone'",
            "a successor or a template that stands still is of no use; write as: clone",
        ),
        rule(
            "!has(self.source.__namespace__) || self.__as__ != 'successor'",
            "a pod succeeds only one of its own namespace; write as: template or clone",
        ),
        rule(
            "!has(self.source.template) || self.__as__ != 'successor'",
            "a SnapshotTemplate's pod has no place to take; write as: template or clone",
        ),
    )
    source: SourceSpec
    kind: Annotated[
        str,
        Field(alias="as"),
        one_of(
            RestoreAs,
            "successor: the new pod continues in the place of the artifact's pod, once that one "
            "has stopped; there is one successor. template: the new pod is a copy. clone: the new "
            "pod is a copy to look into, without network, and ends with this request.",
        ),
    ]
    stopped: Annotated[
        bool | None,
        flag("Of a clone: every process of the clone stays stopped before its first instruction."),
    ] = None
    pod_name: Annotated[
        str | None,
        words(253, "Name of the new pod; absent: the request's name.", least=1, pattern=NAME),
    ] = None
    node_selector: Annotated[
        dict[str, str] | None, labels(16, "Labels of the nodes to which the new pod may be bound.")
    ] = None
    template: Annotated[dict[str, Any] | None, _TEMPLATE] = None
    deadline_seconds: Annotated[
        int,
        deadline(
            "Seconds from the request's creation after which it has failed unless it is done."
        ),
    ] = DEADLINE_S
    ttl_seconds_after_finished: Annotated[
        int | None,
        number(
            32,
            "Seconds after which a request that is done or has failed is deleted, with its clone; "
            "absent: never.",
        ),
    ] = None
    requested_by: RequestedBy = ""


@dataclass(frozen=True, slots=True)
class RestoreRequestStatus:
    """How far the request is."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, number()] = 1
    artifact: Annotated[str, words(400, "Name of the artifact, as in kyb.ai/restore-from.")] = ""
    source_uid: Annotated[
        str, Field(alias="sourceUID"), words(128, "UID of the pod whose state is restored.")
    ] = ""
    pod: Annotated[str, words(253, "Name of the new pod.")] = ""
    pod_uid: Annotated[
        str,
        Field(alias="podUID"),
        words(128, "UID of the new pod; the controller makes no second one."),
    ] = ""
    node: Annotated[str, words(253, "Node of the new pod.")] = ""
    start_time: Annotated[str | None, TIME] = None
    completion_time: Annotated[str | None, TIME] = None
    bytes_done: BytesDone = None
    bytes_total: BytesTotal = None
    copy_restarts: CopyRestarts = None
    estimated_completion_time: EstimatedTime = None
    progress_time: ProgressTime = None
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class RestoreRequestObject:
    """The object as a whole."""

    __pydantic_config__ = CAMEL
    spec: RestoreSpec
    status: RestoreRequestStatus | None = None


def read_restore(item: Mapping[str, Any]) -> RestoreRequest:
    """The request that a RestoreRequest of the API server is. Pure.

    Raises ConfigError, naming it, for one that the CRD of this version would not let in.
    """
    spec, status = mapping(item.get("spec")), mapping(item.get("status"))
    source = mapping(spec.get("source"))
    told: dict[str, Any] = {field: text(status.get(name)) for field, name in _TOLD.items()}
    with reading(keys.RESTORE_REQUEST_KIND, item) as common:
        return RestoreRequest(
            **common,
            created_at=created_at(item),
            artifact=text(source.get("artifact")),
            source_pod=text(source.get("pod")),
            source_template=text(source.get("template")),
            source_namespace=text(source.get("namespace")) or common["namespace"],
            kind=RestoreAs(text(spec.get("as"))),
            stopped=spec.get("stopped") is True,
            pod_name=text(spec.get("podName")) or common["name"],
            status=RestoreStatus(
                **how_far(status, RestoreReason), **told, copied=read_copied(status)
            ),
            template=mapping(spec.get("template")),
            node_selector=dict(texts(spec.get("nodeSelector"))),
        )


def dump_restore(status: RestoreStatus, before: object, generation: int, now: float) -> Json:
    """The status as the API server is to have it, given what it has (`before`)."""
    found = dump(status, RestoreReason.PENDING, before, generation, now)
    told = {name: getattr(status, field) for field, name in _TOLD.items()}
    return found | {name: value for name, value in told.items() if value}


_TOLD = {
    "artifact": "artifact",
    "source_uid": "sourceUID",
    "pod": "pod",
    "pod_uid": "podUID",
    "node": "node",
}


def ask_to_restore(source: Json, kind: RestoreAs, deadline_s: int, **spec: object) -> Json:
    """A RestoreRequest to create, named by the API server after what it is of. Of `spec` what is
    None is left out."""
    of = text(source.get("pod") or source.get("artifact") or source.get("template"))
    asked = {
        "source": {name: value for name, value in source.items() if value},
        "as": kind.value,
        "deadlineSeconds": deadline_s,
        **{name: value for name, value in spec.items() if value is not None},
    }
    return to_create(keys.RESTORE_REQUEST_KIND, {"generateName": f"{of[:MOST_OF_POD]}-"}, asked)
