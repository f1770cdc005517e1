"""An agent that verifies what a restore waits for, and hangs when it is told to.

python -m tests.kit.node.filler KEYS PLACE ARTIFACT UID PIECES: of what nobody waits for each of its
threads looks at so many pieces at most. After a line of input it says "hangs", and looks at no more
until it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.keys.artifactkeys import read_folder
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.raw.wanted import Order
from kybernate.checkpoint.vault import Vault
from kybernate.types import ArtifactId, PodUid, Tier
from tests.cluster.layout import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.checkpoint.raw.wanted import Piece

_LIMIT = 600.0


@contextmanager
def agent(
    keys: Path, place: Path, artifact: str, uid: str, pieces: int
) -> Iterator[Callable[[], None]]:
    """What has it hang; it is killed at the end of the block."""
    argv = [sys.executable, "-m", __name__, str(keys), str(place), artifact, uid, str(pieces)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )

    def hang() -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "hangs\n", "it verifies nothing"

    try:
        yield hang
    finally:
        process.kill()
        process.communicate()


def main(keys: str, place: str, artifact: str, uid: str, pieces: str) -> None:
    """Fills it, until it hangs."""
    hangs, read, following = threading.Event(), PieceReader.read, Order.following

    def until_told(reader: PieceReader, path: Path, number: int) -> memoryview:
        if hangs.is_set():
            threading.Event().wait()
        return read(reader, path, number)

    def limited(order: Order) -> Iterator[Piece]:
        return itertools.islice(following(order), int(pieces))

    def heed() -> None:
        sys.stdin.readline()
        hangs.set()
        print("hangs", flush=True)

    PieceReader.read = until_told  # type: ignore[method-assign,assignment]
    Order.following = limited  # type: ignore[method-assign,assignment]
    threading.Thread(target=heed, daemon=True).start()
    vault = Vault({Tier.NVME: open_place(place, "nvme")}, Tier.NVME, read_folder(Path(keys)))
    asyncio.run(vault.fill(ArtifactId(artifact), PodUid(uid), _LIMIT))


if __name__ == "__main__":
    main(*sys.argv[1:])
