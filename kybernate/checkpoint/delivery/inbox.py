"""States that come from other nodes, until they are sealed in this node's local place.

    .arriving/<successor>/base      the ID of the state of before whose blocks were sent in advance
    .arriving/<successor>/staged/   its files of memory
    .arriving/<successor>/images/   the state itself

Each piece is hashed once it is written, as it reads back, and compared with the signed manifest
when all is there. What lies here is no artifact: whoever begins again may find half of it, or none.

What is kept is on the disk for certain after `sync` alone, which nobody's pause waits for. Until
then a power cut may leave a manifest without its files, so that no process believes one that it
has not held against the files itself.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.objects.objects import make_folder, sync_folder
from kybernate.checkpoint.delivery.incoming import Arriving, Hashing, Incoming, arrived_as
from kybernate.checkpoint.delivery.room import Room
from kybernate.checkpoint.places import opened, read_manifest
from kybernate.checkpoint.raw.seal import remove_folder, verify_raw
from kybernate.checkpoint.raw.stream import Hashed
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.migration.plan import see_own
from kybernate.errors import CorruptError, NotFoundError, RefusedError
from kybernate.lib.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.checkpoint.raw.stream import Seen
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import PodRef, PodUid

log = logging.getLogger(__name__)

ARRIVING = ".arriving"
_BESIDE = ".new-manifest"
_REWRITTEN = ".anew"
_PATIENCE = 3600.0


class Inbox:
    """All of them. Calls for one successor come one after another; those that block say so.

    `room` says how much may come. `patience`: seconds that reading a whole state may take.
    """

    def __init__(
        self, place: Place, keys: ArtifactKeys, seen: Seen, patience: float = _PATIENCE
    ) -> None:
        self._place = place
        self._keys = keys
        self._seen = seen
        self._patience = patience
        self.room = Room(place.local)
        self._folder = place.local / ARRIVING
        self._hashing = Hashing()
        self._files: dict[PodUid, dict[str, Arriving]] = {}
        self._unsynced: set[str] = set()

    def held(self, successor: PodUid) -> tuple[str, dict[str, int]]:
        """The state of before that is here, and how far each of its files goes. Blocks shortly."""
        home = self._home(successor)
        try:
            base = (home / "base").read_text()
            files = {path.name: path.stat().st_size for path in (home / "staged").iterdir()}
        except FileNotFoundError:
            return "", {}
        return base, files

    def found(self, successor: PodUid) -> None:
        """What came before this process began, and nothing has since: a state that comes begins
        again, as nobody has the hashes of what came of it. Blocks. Raises OSError."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._home(successor) / "images")
        self.room.found(successor, self.held(successor)[1])

    def receiving(self, successor: PodUid, staged: str) -> Incoming:
        """For parts that come next: of the state of before `staged`, or of the state itself, which
        begins again. Blocks. Raises OSError."""
        home = self._home(successor)

        def see(name: str, size: int) -> None:
            self.room.see(successor, name, size, staged=bool(staged))

        if staged:
            self._begin_staging(successor, staged)
            return Incoming(home / "staged", home / "staged", self._hashing, {}, see)
        make_folder(home / "images")
        files = self._files.setdefault(successor, {})
        return Incoming(home / "images", home / "staged", self._hashing, files, see)

    def _begin_staging(self, successor: PodUid, base: str) -> None:
        home = self._home(successor)
        with suppress(FileNotFoundError):
            if (home / "base").read_text() != base:
                self.drop(successor)
        make_folder(home / "staged")
        (home / "base").write_text(base)

    def see_signed(self, pod: PodRef, artifact: str, signed: bytes) -> Manifest:
        """The manifest that was sent: signed, this artifact's, and that pod's. Raises RefusedError
        (it isn't signed by who is trusted, or is of another pod), CorruptError."""
        what = f"the manifest of {artifact}, as it was sent"
        manifest = opened(signed, self._keys, what)
        if manifest.id != artifact or manifest.form != manifests.RAW:
            raise CorruptError(f"{what}, is another one's")
        see_own(manifest, pod)
        return manifest

    def accept(
        self, pod: PodRef, successor: PodUid, artifact: str, signed: bytes
    ) -> tuple[str, ...]:
        """What arrived is this artifact, of that pod, and lies in the place from now on; or the
        names of the files that aren't what was signed, and must be sent again. Blocks.

        Raises as `see_signed`, DeadlineError, OSError.
        """
        manifest = self.see_signed(pod, artifact, signed)
        if self.is_here(artifact):
            self.drop(successor)
            return ()
        files = self._files.get(successor, {})
        lacking = tuple(
            each.name for each in manifest.files if not arrived_as(files.get(each.name), each)
        )
        if not lacking:
            self._keep(successor, manifest, signed)
        for name in lacking:
            files.pop(name, None)
        return lacking

    def _keep(self, successor: PodUid, manifest: Manifest, signed: bytes) -> None:
        files = self._files.get(successor, {})
        images = self._home(successor) / "images"
        for path in images.iterdir():
            if path.name not in {each.name for each in manifest.files}:
                path.unlink()
        own = {each.name: (each.size, files[each.name].digests()) for each in manifest.files}
        home = self._place.local / layout.folder(manifest.id)
        make_folder(home)
        with suppress(FileNotFoundError):
            shutil.rmtree(home / layout.IMAGES)
        images.rename(home / layout.IMAGES)
        _write(home / layout.PIECES, Hashed.of(own).pieces)
        _write(home / _BESIDE, signed)
        (home / _BESIDE).rename(home / layout.MANIFEST)
        self._seen.verified.add(manifest.id)
        self.drop(successor)

    def see_whole(self, artifact: str) -> None:
        """Return if it lies here, every byte of it as it was signed: all of them are read, unless
        this process has done so and nobody used them since. Blocks.

        Raises NotFoundError, CorruptError or RefusedError (what lies here can't be used),
        DeadlineError, OSError.
        """
        manifest = read_manifest(self._place, artifact, self._keys)
        if manifest.form == manifests.RAW and artifact not in self._seen.verified:
            verify_raw(self._place, manifest, Deadline(self._patience))
            self._seen.verified.add(artifact)

    def is_here(self, artifact: str) -> bool:
        """Like `see_whole`, for what somebody else still has: what can't be used is removed, and
        is not here. Blocks. Raises RefusedError for what is no ID, DeadlineError, OSError."""
        layout.parse_id(artifact)
        try:
            self.see_whole(artifact)
        except NotFoundError:
            return False
        except (CorruptError, RefusedError) as error:
            log.warning("%s is removed here, since it is damaged: %s", artifact, error)
            self._seen.verified.discard(artifact)
            self._place.objects.delete([layout.manifest_key(artifact)])
            with suppress(FileNotFoundError):
                remove_folder(self._place.local / layout.folder(artifact))
            return False
        return True

    def sync(self, artifact: str) -> None:
        """If it is here, it is on the disk when this returns: no name before what it names. Blocks.

        After an error its files are written again: what wasn't written counts as written from then
        on, and a second sync of it would say that all is well. Raises CorruptError, OSError.
        """
        home = self._place.local / layout.folder(artifact)
        with suppress(FileNotFoundError):
            images = list((home / layout.IMAGES).iterdir())
            files = (*images, home / layout.PIECES, home / layout.MANIFEST)
            try:
                if artifact in self._unsynced:
                    self._rewrite(artifact, files)
                _sync_all(home, files)
            except OSError:
                self._unsynced.add(artifact)
                raise
            self._unsynced.discard(artifact)

    def _rewrite(self, artifact: str, files: Sequence[Path]) -> None:
        for path in files:
            shutil.copyfile(path, path.parent / _REWRITTEN)
            (path.parent / _REWRITTEN).rename(path)
        # What was read may have been the disk's already.
        manifest = read_manifest(self._place, artifact, self._keys)
        verify_raw(self._place, manifest, Deadline(self._patience))

    def drop(self, successor: PodUid) -> None:
        """Forget what came for it. Idempotent, blocks. Raises OSError."""
        self._files.pop(successor, None)
        self.room.drop(successor)
        with suppress(FileNotFoundError):
            shutil.rmtree(self._home(successor))

    def waiting(self) -> frozenset[str]:
        """Successors of whom something lies here. Blocks shortly."""
        try:
            return frozenset(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return frozenset()

    def _home(self, successor: PodUid) -> Path:
        if not layout.is_file(successor):
            raise RefusedError(f"{successor[:200]!r} is no UID of a pod")
        return self._folder / successor


def _sync_all(home: Path, files: Sequence[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(home / layout.IMAGES)
    sync_folder(home)
    sync_folder(home.parent)


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
