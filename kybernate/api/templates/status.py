"""How far a SnapshotTemplate is, in its status. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate.api import pods
from kybernate.api.asked import READY, condition, said
from kybernate.api.events import stamp
from kybernate.api.lenient import mapping, text, whole
from kybernate.core.requests.template import (
    Artifact,
    Basis,
    Build,
    Template,
    TemplateReason,
    TemplateStatus,
)

if TYPE_CHECKING:
    Json = dict[str, Any]


def dump_template_status(
    status: TemplateStatus, template: Template | None, before: object, generation: int, now: float
) -> Json:
    """The status as the API server is to have it, given what it has (`before`)."""
    told = READY, status.reason or TemplateReason.STARTING, status.message
    ready = bool(status.artifact) and status.reason is not TemplateReason.INVALID
    found: Json = {
        "observedGeneration": generation,
        "conditions": [condition(told, before, generation, now, true=ready)],
    }
    if template is None:
        return found
    # It is merged into what is there.
    found |= {"builds": status.builds, "artifact": None, "build": None}
    if one := status.artifact:
        found["artifact"] = {
            "name": one.name,
            "request": one.request,
            "node": one.node,
            "bytes": one.size,
            "at": stamp(one.at),
            "madeOn": one.made_on._asdict(),
            "madeFor": one.made_for._asdict(),
        }
    if build := status.build:
        found["build"] = {
            "number": build.number,
            "pod": template.pod(build.number),
            "podUID": build.uid or None,
            "node": build.node or None,
            "failures": build.failures,
            "notBefore": stamp(build.not_before) if build.not_before else None,
            "madeOn": build.made_on._asdict() if build.uid else None,
            "madeFor": build.wanted._asdict(),
        }
    return found


def read_status(status: Json) -> TemplateStatus:
    """The status that the API server has."""
    return TemplateStatus(
        **said(status, TemplateReason),
        artifact=_read_artifact(mapping(status.get("artifact"))),
        build=_read_build(mapping(status.get("build"))),
        builds=whole(status.get("builds")),
    )


def _read_artifact(found: Json) -> Artifact | None:
    if not found:
        return None
    return Artifact(
        text(found.get("name")),
        text(found.get("request")),
        text(found.get("node")),
        whole(found.get("bytes")),
        pods.seconds(text(found.get("at"))) or 0.0,
        _basis(found.get("madeOn")),
        _basis(found.get("madeFor")),
    )


def _read_build(found: Json) -> Build | None:
    if not found:
        return None
    return Build(
        whole(found.get("number")),
        _basis(found.get("madeFor")),
        whole(found.get("failures")),
        pods.seconds(text(found.get("notBefore"))) or 0.0,
        text(found.get("podUID")),
        text(found.get("node")),
        _basis(found.get("madeOn")),
    )


def _basis(given: object) -> Basis:
    return Basis(*(text(mapping(given).get(name)) for name in Basis._fields))
