"""What a SnapshotTemplate says, read. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from kybernate import keys
from kybernate.api import podnotes, pods
from kybernate.api.lenient import mapping, mappings, text, whole
from kybernate.api.templates.models import DEADLINE_S
from kybernate.api.templates.status import read_status
from kybernate.core.requests.template import Template
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = dict[str, Any]

_MOST_CHARS = 96 * 1024
"""Of all warm-up requests: they are one argument of a program."""


class Recipe(NamedTuple):
    """A template, and what its pods are made of."""

    template: Template
    pod: Mapping[str, Any]
    warm_up: str


def read_template(item: Mapping[str, Any]) -> Recipe:
    """The template that a SnapshotTemplate of the API server is. Pure.

    Raises ConfigError, naming the field, for one of which no pod can be made.
    """
    meta, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    body = mapping(spec.get("template"))
    pod = pods.read_pod(body)
    try:
        pod.check()
        products = podnotes.products(pod.notes)
    except ConfigError as error:
        raise ConfigError("spec.template", str(error)) from error
    ask = pod.ask
    if ask is None:
        example = keys.seat_resource(1)
        raise ConfigError(
            "spec.template.spec.containers", f'none asks for a seat; write limits: {example}: "1"'
        )
    deadline = whole(spec.get("deadlineSeconds"), DEADLINE_S)
    template = Template(
        uid=str(meta.get("uid")),
        namespace=str(meta.get("namespace")),
        name=str(meta.get("name")),
        spec=_digest(spec),
        image=ask.image,
        products=products,
        deadline_s=float(deadline),
        status=read_status(mapping(item.get("status"))),
    )
    return Recipe(template, body, _warm_up(spec, ask.port, deadline))


def _digest(spec: Json) -> str:
    """Of what a pod of it is and does before its state is kept."""
    what = {name: value for name, value in spec.items() if name != "deadlineSeconds"}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _warm_up(spec: Json, port: int | None, deadline: int) -> str:
    """What the container of its name is told; empty if there is nothing for it to do."""
    check = text(mapping(spec.get("readyWhen")).get("get"))
    requests = [_request(one) for one in mappings(spec.get("warmUp"))]
    if not check and not requests:
        return ""
    to = whole(spec.get("port")) or port
    if not to:
        raise ConfigError("spec.port", "no container port is named; write the port")
    told = {"port": to, "ready": check, "requests": requests, "within": deadline}
    found = json.dumps(told, separators=(",", ":"))
    if len(found) > _MOST_CHARS:
        raise ConfigError("spec.warmUp", f"has {len(found)} characters; {_MOST_CHARS} are allowed")
    return found


def _request(given: Json) -> list[str]:
    if path := text(given.get("get")):
        return ["GET", path, ""]
    body = given.get("body")
    return ["POST", text(given.get("post")), json.dumps(body) if body is not None else ""]
