"""ArtifactGrants, as a file that lists them: a JSON list of {namespace, to, artifacts, until}.

It is read anew each time, so that a grant that is taken back ends at once; a file that can't be
read grants nothing.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kybernate.core.artifacts import codec
from kybernate.core.artifacts.grants import Grant
from kybernate.errors import CorruptError

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class _Row:
    namespace: str
    to: tuple[str, ...]
    artifacts: tuple[str, ...] = ()
    until: int = 0


@dataclass(frozen=True, slots=True)
class _File:
    grants: tuple[_Row, ...]


def read_grants(path: Path | None) -> tuple[Grant, ...]:
    """What the file grants; nothing without one."""
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            rows = codec.take(_File, {"grants": json.loads(file.read(_LARGEST))}, "the file").grants
    except (OSError, ValueError, CorruptError) as error:
        log.warning("%s grants nothing: %s", path, error)
        return ()
    return tuple(Grant(one.namespace, one.to, one.artifacts, float(one.until)) for one in rows)
