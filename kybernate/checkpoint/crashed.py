"""What an agent that was killed has left half-made in the local place, which nothing else names."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.checkpoint.raw.seal import remove_folder
from kybernate.core.artifacts import layout

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.checkpoint.places import Place

log = logging.getLogger(__name__)


def half_made(place: Place) -> list[Path]:
    """Folders with images and no manifest: sealed or dropped half-way. Only a node's one agent
    makes such; it looks before it seals anything, and for as long as it looks nobody else does.
    """
    found = place.local.glob(f"{layout.ARTIFACTS}*/*/*/{layout.IMAGES}")
    return [path.parent for path in found if _has_none(path.parent / layout.MANIFEST)]


def remove(folders: list[Path]) -> None:
    """Remove them, as well as can be: what stays is found by the next agent, and by a sweep."""
    for folder in folders:
        try:
            remove_folder(folder)
        except OSError as error:
            log.warning("%s, which is no artifact, stays for now: %s", folder, error)


def _has_none(manifest: Path) -> bool:
    try:
        manifest.lstat()
    except FileNotFoundError:
        return True
    except OSError as error:
        log.warning("%s stays, whatever it is: %s", manifest.parent, error)
    return False
