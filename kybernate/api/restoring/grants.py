"""ArtifactGrant: a namespace lets pods of others start copies of its artifacts."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from kybernate import keys
from kybernate.api.schema import CAMEL, items, rule, text
from kybernate.core.artifacts import codec
from kybernate.core.artifacts.grants import ALL, Grant
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, CorruptError

if TYPE_CHECKING:
    from collections.abc import Mapping

NEVER = "never"
"""The end of what ends when it is deleted."""

_WRITE = f"write 2028-01-01T00:00:00Z, or {NEVER}"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


@dataclass(frozen=True, slots=True)
class Spec:
    """Which artifacts of this namespace the pods of which namespaces may restore, and until when.
    Each field is required, so that a misspelled field can't grant more than was meant."""

    __pydantic_config__ = CAMEL
    to: Annotated[
        tuple[Annotated[str, text(63)], ...],
        items(
            64,
            "set",
            "Namespaces whose pods may restore the artifacts, such as team-b.",
            least=1,
            rules=[
                rule(
                    f"self.all(n, n.matches('^{_LABEL}$'))",
                    "name namespaces, such as team-b: lower-case letters, digits and -; there is "
                    "no name for all of them",
                )
            ],
        ),
    ]
    artifacts: Annotated[
        tuple[Annotated[str, text(253)], ...],
        items(
            64,
            "set",
            "Names of the pods whose artifacts are granted, such as llama-0: the part between / "
            "and @ of an artifact's name. The grant holds for artifacts that there are and for "
            'those to come. "*", alone: all artifacts of this namespace.',
            least=1,
            rules=[
                rule(
                    "(self.size() == 1 && self[0] == '*') || "
                    f"self.all(n, n.matches('^{_LABEL}([.]{_LABEL})*$'))",
                    "name pods, such as llama-0, without the namespace and without what follows @; "
                    'or write "*" alone for all of this namespace',
                )
            ],
        ),
    ]
    until: Annotated[
        str,
        text(
            64,
            "When the grant ends, such as 2028-01-01T00:00:00Z; never: when the ArtifactGrant is "
            "deleted. Pods that run by then continue.",
            anyOf=[{"format": "date-time"}, {"enum": [NEVER]}],
        ),
    ]


@dataclass(frozen=True, slots=True)
class ArtifactGrant:
    """The object as a whole."""

    __pydantic_config__ = CAMEL
    spec: Spec


def read_grant(item: Mapping[str, Any]) -> Grant:
    """The grant that an ArtifactGrant of the API server is.

    Raises ConfigError, naming it, for one that the CRD would not let in, or of another version's.
    """
    meta = item["metadata"]
    name = f"{keys.ARTIFACT_GRANT_KIND} {meta['namespace']}/{meta['name']}"
    try:
        # Strictly: a field that is missing may have been misspelled, and dropped by the API server.
        spec = codec.take(Spec, item.get("spec"), "spec")
        until = math.inf if spec.until == NEVER else _seconds(spec.until)
    except (CorruptError, ValueError) as error:
        raise ConfigError(name, str(error)) from error
    if not spec.to or not spec.artifacts:
        raise ConfigError(name, f"spec: to and artifacts name something; {ALL!r} is all artifacts")
    if ALL in spec.artifacts and len(spec.artifacts) > 1:
        raise ConfigError(name, f"spec: artifacts name some, or are {ALL!r} alone for all")
    return Grant(meta["namespace"], spec.to, spec.artifacts, until)


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
