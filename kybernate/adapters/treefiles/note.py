"""What is said of an archive of files, beside it; and how long work on one may take."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import beneath, smallfile
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError, RestoreError
from kybernate.types import of_record

if TYPE_CHECKING:
    from pathlib import Path

ARCHIVE = "files.tar"
NOTE = "files.json"


@dataclass(frozen=True, slots=True)
class Note:
    """`home`: the container that the files are of. `missing`: why they did not travel, or empty.
    `volumes`: places of which nothing travels, since a volume was mounted there."""

    home: str
    files: int = 0
    size: int = 0
    missing: str = ""
    volumes: tuple[str, ...] = ()

    def write(self, folder: int) -> None:
        """Into an open folder. Raises OSError."""
        said = asdict(self)
        if not self.volumes:
            del said["volumes"]  # agents of before read none
        with os.fdopen(beneath.made(NOTE, folder), "w") as file:
            json.dump(said, file)

    @classmethod
    def read(cls, images: Path) -> Note | None:
        """None of images of before there were notes. Raises RestoreError, OSError. What only a
        newer release says there is passed over."""
        try:
            said = json.loads((images / NOTE).read_text())
            volumes = tuple(map(str, said.get("volumes", ())))
            return of_record(cls, {**said, "home": _text(said["home"]), "volumes": volumes})
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RestoreError(f"{images / NOTE} can't be understood: {error}") from error


def _text(said: object) -> str:
    if isinstance(said, str):
        return said
    raise TypeError(f"{said!r} is no text")


def home_of(init: int, proc: str) -> str:
    """Names the container exactly: boot, process 1 and its start. Raises NotFoundError."""
    try:
        start = smallfile.read(f"{proc}/{init}/stat").rpartition(")")[2].split()[19]
    except beneath.GONE as error:
        raise NotFoundError(f"There is no process {init} any more.") from error
    return f"{smallfile.read('/proc/sys/kernel/random/boot_id').strip()}/{init}/{start}"
