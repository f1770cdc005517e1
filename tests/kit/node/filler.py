"""An agent that verifies what a restore waits for, and hangs after some of it.

python -m tests.kit.node.filler KEYS PLACE ARTIFACT UID PIECES: says "hangs" once it has looked at
so many pieces, and looks at no more until it is killed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.keys.artifactkeys import read_folder
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.vault import Vault
from kybernate.types import ArtifactId, PodUid, Tier
from tests.cluster.layout import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT = 600.0


@contextmanager
def agent(keys: Path, place: Path, artifact: str, uid: str, pieces: int) -> Iterator[None]:
    """It hangs when the block begins or some time later, and is killed at its end."""
    argv = [sys.executable, "-m", __name__, str(keys), str(place), artifact, uid, str(pieces)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    try:
        yield
        assert process.stdout is not None
        assert process.stdout.readline() == "hangs\n", "it verifies nothing"
    finally:
        process.kill()
        process.communicate()


def main(keys: str, place: str, artifact: str, uid: str, pieces: str) -> None:
    """Fills it, until it hangs."""
    left, read = threading.Semaphore(int(pieces)), PieceReader.read

    def limited(reader: PieceReader, path: Path, number: int) -> memoryview:
        if not left.acquire(blocking=False):
            print("hangs", flush=True)
            threading.Event().wait()
        return read(reader, path, number)

    PieceReader.read = limited  # type: ignore[method-assign,assignment]
    vault = Vault({Tier.NVME: open_place(place, "nvme")}, Tier.NVME, read_folder(Path(keys)))
    asyncio.run(vault.fill(ArtifactId(artifact), PodUid(uid), _LIMIT))


if __name__ == "__main__":
    main(*sys.argv[1:])
