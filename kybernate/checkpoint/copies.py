"""The copies of one artifact in a node's places, and what is said where none of them can be had."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from kybernate.checkpoint.places import read_manifest
from kybernate.errors import CorruptError, KybernateError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest

_UNREADABLE = frozenset(
    (
        *(errno.EIO, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ENXIO, errno.ENODEV),
        *(errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.ESTALE),
    )
)


class Copies:
    """Those that answer, in the order of `places`, each with its manifest; iterated once.

    `problems`: what stood against the others, to which the caller adds what stands against one
    that it could not use.
    """

    def __init__(self, places: Sequence[Place], artifact: str, keys: ArtifactKeys) -> None:
        self._places = places
        self._artifact = artifact
        self._keys = keys
        self.problems: list[KybernateError | OSError] = []

    def __iter__(self) -> Iterator[tuple[Place, Manifest]]:
        for place in self._places:
            try:
                manifest = read_manifest(place, self._artifact, self._keys)
            except NotFoundError:
                continue
            except (KybernateError, OSError) as error:
                self.problems.append(error)
                continue
            yield place, manifest

    def why_none(self) -> KybernateError | OSError:
        """What to raise where none could be used: of a copy that may be had later rather than of
        one that never will, since callers give a state up for the latter."""
        damaged = [one for one in self.problems if isinstance(one, (CorruptError, RefusedError))]
        away = [one for one in self.problems if one not in damaged]
        missing = NotFoundError(f"{self._artifact} is in no place of this node that answers")
        return next(iter((*away, *damaged)), missing)


def is_unreadable(error: Exception) -> bool:
    """Whether a disk can't give what lies on it; another copy may be had then."""
    return isinstance(error, OSError) and error.errno in _UNREADABLE
