"""States that go to other nodes: which of a node's files are sent, and what is known of the other
end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.checkpoint.places import read_manifest
from kybernate.checkpoint.raw import stream
from kybernate.checkpoint.raw.seal import images_of
from kybernate.checkpoint.raw.stream import Base, Following
from kybernate.core.artifacts import layout
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.checkpoint.raw.stream import Part, Seen
    from kybernate.lib.deadline import Deadline
    from kybernate.types import PodUid


class Outbox:
    """All of them. Iterators are read by one thread each; a successor's come one after another."""

    def __init__(self, place: Place, keys: ArtifactKeys, seen: Seen) -> None:
        self._place = place
        self._keys = keys
        self._seen = seen
        self._bases: dict[PodUid, Base] = {}

    def staging(
        self, successor: PodUid, artifact: str, have: Mapping[str, int], deadline: Deadline
    ) -> Iterator[Part]:
        """The memory of a state that is sealed here, but for what the other end has of each file.

        Raises NotFoundError, RefusedError, CorruptError, DeadlineError, OSError.
        """
        images = images_of(self._place, read_manifest(self._place, artifact, self._keys))
        base = Base(artifact)
        yield from stream.staging(images, base, have, deadline)
        self._bases[successor] = base

    def following(
        self, successor: PodUid, images: Path, dumped: threading.Event, deadline: Deadline
    ) -> Iterator[Part]:
        """A dump that is being written. Its hashes are left for who seals it.

        Raises RefusedError, DeadlineError, OSError.
        """
        base = self._bases.get(successor, Base())
        following = Following(images, base, dumped, deadline)
        yield from following.parts()
        if following.hashed is not None:
            self._seen.hashed[images] = following.hashed

    def whole(self, artifact: str, names: Iterator[str], deadline: Deadline) -> Iterator[Part]:
        """These files of a state that is sealed here. Raises like `staging`, and RefusedError for
        what is none of them: the other end chooses the names, and gets nothing else of this node.
        """
        manifest = read_manifest(self._place, artifact, self._keys)
        asked, known = tuple(names), {each.name for each in manifest.files}
        for name in asked:
            if name not in known:
                raise RefusedError(f"{name!r}, which was asked for, is no file of {artifact}")
        yield from stream.whole_files(images_of(self._place, manifest), iter(asked), deadline)

    def signed(self, artifact: str) -> bytes:
        """Its manifest, with the signature. Blocks shortly. Raises NotFoundError, RefusedError."""
        return bytes(self._place.objects.get(layout.manifest_key(artifact)))

    def forget(self, successor: PodUid) -> None:
        """Nothing more goes there."""
        self._bases.pop(successor, None)
