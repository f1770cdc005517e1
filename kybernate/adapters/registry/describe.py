"""From an artifact's manifest to what the registry keeps of it."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import TYPE_CHECKING

import orjson
from pydantic import ValidationError

from kybernate.adapters.registry.wire import CONTENT, PERSON_HOLD, Described
from kybernate.core.artifacts.manifest import content
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import Tier

_FACTS = (
    *("image_digest", "spec_hash", "kernel", "criu", "architecture", "highest_pid", "gpu_product"),
    *("gpu_count", "driver", "cuda", "kyb_init"),
)


def describe(manifest: Manifest, person_hold: Tier | None = None) -> Described:
    """The same for each form of an artifact's manifest. `person_hold`: where people keep a copy.
    Raises RefusedError, naming the field."""
    facts = manifest.facts
    try:
        return Described(
            digest=digest(manifest),
            pod=facts.pod,
            pod_uid=facts.pod_uid,
            container=facts.container,
            model=facts.model,
            size=manifest.total,
            created_ms=int(datetime.fromisoformat(manifest.created).timestamp() * 1000),
            parent=facts.parent or None,
            facts={name: getattr(facts, name) for name in _FACTS}
            | _content(manifest)
            | ({PERSON_HOLD: person_hold.value} if person_hold else {}),
        )
    except (ValidationError, ValueError) as error:
        raise RefusedError(f"{manifest.id}: {_first(error)}") from error


def _content(manifest: Manifest) -> dict[str, str]:
    found = content(manifest.files)
    return {CONTENT: found} if found else {}


def digest(manifest: Manifest) -> str:
    """The hash of whose state it is: what names an artifact, and not what its files hold.

    Facts that later versions may add are not in it: the same artifact keeps its digest.
    """
    facts = manifest.facts
    said = (
        *(manifest.id, manifest.created, manifest.origin, manifest.total),
        *(facts.namespace, facts.pod, facts.pod_uid, facts.image_digest, facts.spec_hash),
    )
    return hashlib.sha256(orjson.dumps(said)).hexdigest()


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
