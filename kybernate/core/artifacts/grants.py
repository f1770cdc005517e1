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


ALL = "*"
"""Alone among the names of artifacts: all of the namespace."""

NEVER = "never"
"""The end of what ends when it is deleted."""

_WRITE = f"write 2028-01-01T00:00:00Z, or {NEVER}"


@dataclass(frozen=True, slots=True)
class Grant:
    """An ArtifactGrant: it lies in the artifacts' `namespace` and lets those in `to` restore.

    `artifacts`: names of artifacts (the part before @), or `ALL` alone. `until`: seconds since
    1970, infinite for no end.
    """

    namespace: str
    to: tuple[str, ...]
    artifacts: tuple[str, ...]
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class _Spec:
    to: tuple[str, ...]
    artifacts: tuple[str, ...]
    until: str


def no_grants() -> tuple[Grant, ...]:
    """What is granted where no ArtifactGrants are read."""
    return ()


def read_grant(item: Mapping[str, Any]) -> Grant:
    """The grant that an ArtifactGrant of the API server is.

    Raises ConfigError, naming it, for one that the CRD would not let in, or of another version's.
    """
    meta = item["metadata"]
    name = f"{keys.ARTIFACT_GRANT_KIND} {meta['namespace']}/{meta['name']}"
    try:
        # Strictly: a field that is missing may have been misspelled, and dropped by the API server.
        spec = codec.take(_Spec, item.get("spec"), "spec")
        until = math.inf if spec.until == NEVER else _seconds(spec.until)
    except (CorruptError, ValueError) as error:
        raise ConfigError(name, str(error)) from error
    if not spec.to or not spec.artifacts:
        raise ConfigError(name, f"spec: to and artifacts name something; {ALL!r} is all artifacts")
    if ALL in spec.artifacts and len(spec.artifacts) > 1:
        raise ConfigError(name, f"spec: artifacts name some, or are {ALL!r} alone for all")
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
        and (grant.artifacts == (ALL,) or parts.name in grant.artifacts)
        and now < grant.until
    )


def _seconds(stamp: str) -> float:
    """Since 1970. Raises ValueError."""
    try:
        # RFC 3339 takes both cases, and the API server with it.
        at = datetime.fromisoformat(stamp.upper())
    except ValueError as error:
        raise ValueError(f"spec: until is no time ({stamp}); {_WRITE}") from error
    if at.tzinfo is None:
        raise ValueError(f"spec: until has no time zone ({stamp}); {_WRITE}")
    return at.timestamp()
