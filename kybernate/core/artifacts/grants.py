"""Who may restore an artifact: its own namespace, and those that an ArtifactGrant names. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kybernate.core.artifacts import layout
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


ALL = "*"
"""Alone among the names of artifacts: all of the namespace."""


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


def no_grants() -> tuple[Grant, ...]:
    """What is granted where no ArtifactGrants are read."""
    return ()


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
