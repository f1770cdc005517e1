"""SnapshotTemplate, as the API server has it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from kybernate.api.gpunodes import Condition  # noqa: TC001 - pydantic reads it
from kybernate.api.schema import CAMEL, TIME, checked, items, rule
from kybernate.api.schema import text as words
from kybernate.api.schema import whole as amount
from kybernate.dataclass import dataclass

DEADLINE_S = 1800
_MOST_REQUESTS = 16
_PATH = "^/[!-~]*$"
_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True, slots=True)
class PodMeta:
    """The pod's metadata."""

    __pydantic_config__ = CAMEL
    labels: Annotated[
        dict[str, str] | None,
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
    ] = None
    annotations: Annotated[
        dict[str, str] | None,
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
    ] = None


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """The pod, as in a Deployment."""

    __pydantic_config__ = CAMEL
    spec: Annotated[
        dict[str, Any],
        WithJsonSchema(
            {
                **_FREE,
                "description": "The pod's spec, the same as that of the pods that start from the "
                "template.",
            }
        ),
    ]
    metadata: PodMeta | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """When the workload takes requests."""

    __pydantic_config__ = CAMEL
    get: Annotated[
        str,
        words(1024, "Path that the pod answers with 2xx once it is ready.", least=1, pattern=_PATH),
    ]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """One request."""

    __pydantic_config__ = checked(
        rule("has(self.get) != has(self.post)", "write get or post, with a path"),
        rule("!has(self.body) || has(self.post)", "only post has a body"),
    )
    get: Annotated[str | None, words(1024, "Path of the request.", least=1, pattern=_PATH)] = None
    post: Annotated[str | None, words(1024, "Path of the request.", least=1, pattern=_PATH)] = None
    body: Annotated[
        dict[str, Any] | None,
        WithJsonSchema({**_FREE, "description": "Body of a POST, sent as JSON."}),
    ] = None


@dataclass(frozen=True, slots=True)
class Spec:
    """The pod, and what it does before its artifact is made."""

    __pydantic_config__ = CAMEL
    template: PodTemplate
    port: Annotated[
        int | None,
        amount(
            32,
            "Port for the requests below; absent: the first port of the container with the seat.",
            least=1,
            most=65535,
        ),
    ] = None
    ready_when: Annotated[
        Check | None,
        Field(description="Condition for warmUp to begin, besides the pod's own readiness probe."),
    ] = None
    warm_up: Annotated[
        tuple[WarmUp, ...],
        items(
            _MOST_REQUESTS,
            "atomic",
            "Requests that are sent one after another; the pod must answer each with 2xx.",
        ),
    ] = ()
    deadline_seconds: Annotated[
        int,
        amount(
            32,
            "Seconds from the pod's creation in which its artifact must be made.",
            least=60,
            most=86400,
            default=DEADLINE_S,
        ),
    ] = DEADLINE_S


@dataclass(frozen=True, slots=True)
class BasisRow:
    """What an artifact fits."""

    __pydantic_config__ = CAMEL
    spec: Annotated[str, words(64, "Hash of the template's spec.")] = ""
    image: Annotated[str, words(1024, "Digest of the image.")] = ""
    product: Annotated[str, words(256, "Product of the GPUs.")] = ""
    driver: Annotated[str, words(64, "Version of the GPUs' driver.")] = ""


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """The artifact from which pods start."""

    __pydantic_config__ = CAMEL
    name: Annotated[str, words(400)]
    request: Annotated[str, words(253, "The CheckpointRequest that made the artifact.")]
    node: Annotated[str, words(253)] = ""
    bytes: Annotated[int, amount()] = 0
    at: Annotated[str | None, TIME] = None
    made_on: Annotated[BasisRow | None, Field(description="On what the artifact's pod ran.")] = None
    made_for: Annotated[
        BasisRow | None, Field(description="What the template asked for at that time.")
    ] = None


@dataclass(frozen=True, slots=True)
class BuildRow:
    """The artifact that is being made."""

    __pydantic_config__ = CAMEL
    number: Annotated[int, amount(32)]
    pod: Annotated[str, words(253)] = ""
    pod_uid: Annotated[str | None, words(128), Field(alias="podUID")] = None
    node: Annotated[str, words(253)] = ""
    failures: Annotated[
        int, amount(32, "Number of attempts in a row that have failed before this one.")
    ] = 0
    not_before: Annotated[str | None, TIME] = None
    made_on: BasisRow | None = None
    made_for: BasisRow | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """How far the template is; the controller writes it."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, amount()] = 1
    builds: Annotated[
        int, amount(32, "Number of artifacts that the controller has begun to make.")
    ] = 0
    artifact: ArtifactRow | None = None
    build: BuildRow | None = None
    conditions: Annotated[
        tuple[Condition, ...],
        items(
            8,
            "type",
            "Ready: True if pods start from the template's artifact; the reason says more.",
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class SnapshotTemplate:
    """The object as a whole."""

    __pydantic_config__ = CAMEL
    spec: Spec
    status: Status | None = None
