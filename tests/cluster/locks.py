"""One process at a time."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
