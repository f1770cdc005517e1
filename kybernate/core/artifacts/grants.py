"""Who may restore an artifact: its own namespace, and those that an ArtifactGrant names. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.core.artifacts import codec, layout
from kybernate.errors import ConfigError, CorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Grant:
    """An ArtifactGrant: it lies in the artifacts' `namespace` and lets those in `to` restore.

    `artifacts`: names of artifacts (the part before @), or none for all. `until`: seconds since
    1970, infinite for no end.
    """

    namespace: str
    to: tuple[str, ...]
    artifacts: tuple[str, ...] = ()
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class _Spec:
    to: tuple[str, ...]
    artifacts: tuple[str, ...] = ()
    until: str = ""


def no_grants() -> tuple[Grant, ...]:
    """What is granted where no ArtifactGrants are read."""
    return ()


def read_grant(item: Mapping[str, Any]) -> Grant:
    """The grant that an ArtifactGrant of the API server is.

    Raises ConfigError, naming it, for one that the CRD would not let in, or of another version's.
    """
    meta = item["metadata"]
    name = f"{keys.ARTIFACT_GRANT_KIND} {meta['namespace']}/{meta['name']}"
    raw: Any = item.get("spec")
    try:
        spec = codec.take(_Spec, raw, "spec")
        until = _seconds(spec.until) if "until" in raw else math.inf
    except (CorruptError, ValueError) as error:
        raise ConfigError(name, str(error)) from error
    # A list from which the last name was taken doesn't mean all.
    if not spec.to or ("artifacts" in raw and not spec.artifacts):
        raise ConfigError(name, "spec: to and artifacts name something; artifacts may be left out")
    return Grant(meta["namespace"], spec.to, spec.artifacts, until)


def why_not(
    artifact: str, namespace: str, grants: Callable[[], Iterable[Grant]], now: float
) -> str:
    """Why a pod of `namespace` may not restore it, as a sentence; empty if it may. `grants` is
    asked only if it is another namespace's.

    Raises RefusedError if it is no artifact, and what `grants` raises.
    """
    parts = layout.parse_id(artifact)
    if parts.namespace == namespace:
        return ""
    if any(_covers(grant, parts, namespace, now) for grant in grants()):
        return ""
    return (
        f"{artifact} belongs to namespace {parts.namespace}; an ArtifactGrant there must let "
        f"{namespace} restore {parts.name}."
    )


def _covers(grant: Grant, parts: layout.Parts, namespace: str, now: float) -> bool:
    return (
        grant.namespace == parts.namespace
        and namespace in grant.to
        and (not grant.artifacts or parts.name in grant.artifacts)
        and now < grant.until
    )


def _seconds(stamp: str) -> float:
    """Since 1970. Raises ValueError."""
    try:
        # RFC 3339 takes both cases, and the API server with it.
        at = datetime.fromisoformat(stamp.upper())
    except ValueError as error:
        raise ValueError(f"spec: until is no time ({stamp}); write 2028-01-01T00:00:00Z") from error
    if at.tzinfo is None:
        raise ValueError(f"spec: until has no time zone ({stamp}); write 2028-01-01T00:00:00Z")
    return at.timestamp()
