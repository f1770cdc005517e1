"""From an artifact's manifest to what the registry keeps of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from kybernate.adapters.registry.wire import Described
from kybernate.core.artifacts import codec
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from kybernate.core.artifacts.manifest import Manifest

_FACTS = (
    *("image_digest", "spec_hash", "kernel", "criu", "architecture", "highest_pid", "gpu_product"),
    *("gpu_count", "driver", "cuda", "kyb_init"),
)


def describe(manifest: Manifest) -> Described:
    """The same for each form of an artifact's manifest. Raises RefusedError, naming the field."""
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
            facts={name: getattr(facts, name) for name in _FACTS},
        )
    except (ValidationError, ValueError) as error:
        raise RefusedError(f"{manifest.id}: {_first(error)}") from error


def digest(manifest: Manifest) -> str:
    """The hash of what is said of the artifact itself, and not of how a place keeps it."""
    itself = replace(manifest.facts, parent="")
    said = (manifest.version, manifest.id, manifest.created, manifest.total, manifest.origin)
    return hashlib.sha256(repr(said).encode() + codec.encode(itself)).hexdigest()


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
