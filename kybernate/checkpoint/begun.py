"""The folders of the local place in which dumps are made and fetched, one for each seat."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.objects.objects import make_folder
from kybernate.errors import RefusedError
from kybernate.types import PodUid

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.checkpoint.places import Place

_BEGUN = ".begun"
_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,127}")


def folder_of(place: Place, uid: PodUid) -> Path:
    """Where a seat's dump is made. Raises RefusedError for what is no UID."""
    if not _UID.fullmatch(uid):
        raise RefusedError(f"{uid[:200]!r} is no UID of a pod")
    return place.local / _BEGUN / uid


def uids(place: Place) -> tuple[PodUid, ...]:
    """Of which seats there are such folders. Raises OSError."""
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = [path.name for path in (place.local / _BEGUN).iterdir()]
    return tuple(PodUid(name) for name in sorted(names) if _UID.fullmatch(name))


def empty(folder: Path) -> None:
    """It is there, and nothing in it. Raises OSError."""
    remove(folder)
    make_folder(folder)


def remove(folder: Path) -> None:
    """It isn't there. Raises OSError."""
    if folder.exists():
        shutil.rmtree(folder)
