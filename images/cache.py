"""The cache of builds and downloads that all targets share, and its locks."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPOSITORY = Path(__file__).resolve().parents[1]

Progress = Callable[[str], None]
"""Called with one line about what is being done."""


def silent(_line: str) -> None:
    """A Progress that tells nobody."""


def cache_root() -> Path:
    """The folder of builds and downloads: $KYB_CACHE, by default ~/.cache/kybernate."""
    given = os.environ.get("KYB_CACHE")
    return Path(given).expanduser().resolve() if given else Path.home() / ".cache" / "kybernate"


@contextmanager
def file_lock(path: Path, limit: float = 3600.0) -> Iterator[None]:
    """Holds the lock file. Raises DeadlineError if another process keeps it `limit` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + limit
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"{path} is held by another process for {limit:.0f} s; "
                        "wait for it, or end it"
                    ) from error
                time.sleep(0.1)
        yield


def made_once(target: Path, fill: Callable[[Path], None]) -> Path:
    """The folder `target`. If it isn't there, `fill` makes a part, which becomes it as a whole;
    no other process makes it meanwhile. Raises DeadlineError, and what `fill` raises."""
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            part = target.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            fill(part)
            part.rename(target)
    return target


def digest_of(*texts: str, files: Sequence[Path] = (), root: Path = REPOSITORY) -> str:
    """Names these texts and files: their places below `root`, modes and contents (16 digits)."""
    total = hashlib.sha256("\0".join(texts).encode())
    for file in files:
        place = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
        total.update(f"\0{place}\0{file.stat().st_mode & 0o111}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]
