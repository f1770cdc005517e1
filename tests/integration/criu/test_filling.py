"""Trees that run before what they are restored from has been verified, or that are recreated while
it is fetched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu import holders, running
from kybernate.adapters.keys.artifactkeys import read_folder
from kybernate.checkpoint import marks
from kybernate.checkpoint.packs import files
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts.into import Into
from kybernate.core.artifacts.manifest import PIECE
from kybernate.errors import CorruptError, KybernateError, NotFoundError, RestoreError
from kybernate.types import PodUid, Tier
from tests.cluster.layout import REPOSITORY
from tests.kit.node import filler, mortal
from tests.kit.node.containers import wait_for
from tests.kit.node.parking import LIMIT, held
from tests.kit.node.programs import progress, python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from typing import Any

    from kybernate.types import ArtifactId
    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration

UID = PodUid("5e1f")
INTO = Into("default", UID)
FACTS = {
    "namespace": "default",
    "pod": "a",
    "pod_uid": UID,
    "container": "main",
    "image_digest": "sha256:abc",
    "spec_hash": "9f2c",
    "kernel": "6.18.5",
    "criu": "4.2.1",
    "architecture": "x86_64",
    "highest_pid": 312,
    "privileges": {"uids": [0], "gids": [0]},
}
HOLDER = """
import hashlib, mmap, os, time
data = os.urandom(200 << 20)
told = hashlib.sha256(data).hexdigest()
with open("/app/count", "r+b") as file:
    memory = mmap.mmap(file.fileno(), 8)
print("ready", flush=True)
number = 0
while True:
    number += 1
    memory[:8] = number.to_bytes(8, "little")
    time.sleep(0.01)
    if os.path.exists("/app/look"):
        right = hashlib.sha256(data).hexdigest() == told
        with open("/app/seen", "w") as seen:
            seen.write(f"{right}\\n")
        os.remove("/app/look")
"""


class Pace:
    """Takes long over each piece of memory, until `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self._reader, self._read = PieceReader(), PieceReader.read

    def read(self, path: Path, number: int) -> memoryview:
        """In place of `PieceReader.read`."""
        if marks.path_of(path).exists():
            self.go.wait(0.1)
        return self._read(self._reader, path, number)


class Saved:
    """A tree that counts, parked, whose state is in a vault; its images are those that are lent."""

    def __init__(self, one: Seat, folder: Path) -> None:
        self.one, self.folder = one, folder
        self.keys, self.nvme = folder / "keys", one.node.work / "nvme"
        words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--dir"]
        subprocess.run([*words, str(self.keys)], check=True, cwd=REPOSITORY, timeout=60)
        for path in (self.nvme, folder / "objects"):
            path.mkdir(exist_ok=True)
        self.vault = self.another_vault()
        self.artifact = self._park()
        self._filling: threading.Thread | None = None
        self.failed: KybernateError | None = None

    def another_vault(self) -> Vault:
        """As an agent has it that has just been started."""
        places = {
            Tier.NVME: open_place(str(self.nvme), "nvme"),
            Tier.OBJECT: open_place(str(self.folder / "objects"), "object store"),
        }
        return Vault(places, Tier.NVME, read_folder(self.keys))

    def _park(self) -> ArtifactId:
        one = self.one
        one.images = one.run(self.vault.begin(UID))
        one.park()
        return one.run(self.vault.seal(one.images, FACTS, LIMIT))

    def lend(self) -> None:
        """What can be restored from while it is filled."""
        self.one.images = self.one.run(self.vault.lend(self.artifact, UID, LIMIT, INTO))

    def fill(self) -> None:
        """From now on, until all is filled or it fails."""
        self._filling = threading.Thread(target=self._fill)
        self._filling.start()

    def _fill(self) -> None:
        try:
            asyncio.run(self.another_vault().fill(self.artifact, UID, 10 * LIMIT))
        except KybernateError as error:
            self.failed = error

    def filled(self) -> None:
        """Once it is over."""
        if self._filling is not None:
            self._filling.join(LIMIT)

    def states(self) -> bytes:
        """What is said of all pieces."""
        return b"".join(marks.Marks(path).states() for path in marks.pages_of(self.one.images))

    def largest(self) -> Path:
        """The pages file that has the most."""
        return max(marks.pages_of(self.one.images), key=lambda path: path.stat().st_size)

    def see_running(self) -> None:
        """It counts on."""
        before = progress(self.folder)
        wait_for(lambda: progress(self.folder) > before, "it doesn't run", LIMIT)

    def see_right(self) -> None:
        """Its memory is as it was."""
        (self.folder / "look").touch()
        wait_for((self.folder / "seen").exists, "it doesn't answer", LIMIT)
        wait_for(lambda: (self.folder / "seen").read_text() == "True\n", "its memory is wrong")
        (self.folder / "seen").unlink()

    def serving(self) -> list[int]:
        """What serves the tree's memory."""
        found = (self.one.node.work / "criu").glob(f"{self.one.container.init}-*")
        return [pid for work in found for pid in holders.find(work / running.PAGES)]


@pytest.fixture
def saved(seat: Callable[..., Seat], tmp_path: Path) -> Iterator[Saved]:
    (tmp_path / "count").write_bytes(bytes(8))
    one = Saved(python(seat, tmp_path, HOLDER), tmp_path)
    yield one
    one.filled()
    one.one.run(one.vault.abandon(UID))


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pace]:
    made = Pace()
    monkeypatch.setattr(PieceReader, "read", made.read)
    yield made
    made.go.set()


def test_it_runs_before_most_of_it_is_verified_and_then_all_is_right(
    saved: Saved, pace: Pace
) -> None:
    saved.lend()
    saved.fill()
    saved.one.resume(lazy=True)
    saved.see_running()
    states = saved.states()
    assert states.count(marks.THERE) < len(states) / 2
    pace.go.set()
    saved.one.pages_done()
    saved.filled()
    assert saved.failed is None
    assert set(saved.states()) == {marks.THERE}
    saved.see_right()


def test_what_an_agent_did_not_get_to_the_next_one_fills(saved: Saved) -> None:
    saved.lend()
    with filler.agent(saved.keys, saved.nvme, saved.artifact, UID, pieces=60) as hang:
        saved.one.restore(lazy=True)
        hang()
        saved.one.thaw()
    assert marks.COMES in saved.states()
    (saved.folder / "look").touch()
    before = saved.states()
    time.sleep(0.3)
    assert saved.states() == before
    assert not (saved.folder / "seen").exists(), "it has read what nobody verified"
    saved.fill()
    saved.one.pages_done()
    saved.see_right()


def _spoil(path: Path, piece: int) -> None:
    with path.open("r+b") as file:
        was = os.pread(file.fileno(), 1, piece * PIECE + 77)[0]
        os.pwrite(file.fileno(), bytes([was ^ 1]), piece * PIECE + 77)


def test_a_wrong_piece_comes_from_another_place(saved: Saved) -> None:
    saved.one.run(saved.vault.pack(saved.artifact, Tier.OBJECT, LIMIT))
    saved.lend()
    _spoil(saved.largest(), 100)
    saved.fill()
    saved.one.resume(lazy=True)
    saved.one.pages_done()
    saved.filled()
    assert saved.failed is None
    saved.see_right()


def test_a_tree_of_which_a_piece_is_lost_ends_rather_than_see_it(saved: Saved) -> None:
    saved.lend()
    _spoil(saved.largest(), 100)
    saved.fill()
    saved.one.resume(lazy=True)
    with pytest.raises(RestoreError, match="piece 100 is lost in every place"):
        saved.one.pages_done()
    saved.filled()
    assert isinstance(saved.failed, CorruptError)
    init = Path(f"/proc/{saved.one.container.init}/fd/0")
    wait_for(lambda: not init.exists(), "it lives on")
    wait_for(lambda: not saved.serving(), "what served it stays")


def test_what_waits_for_a_dead_agent_is_ended_with_its_container(saved: Saved) -> None:
    saved.lend()
    filling = filler.agent(saved.keys, saved.nvme, saved.artifact, UID, pieces=60)
    with filling as hang, mortal.agent(saved.one, lent=True) as server:
        hang()
    os.kill(server, signal.SIGCONT)
    saved.one.thaw()
    assert saved.serving()
    os.kill(saved.one.container.init, 9)
    init = Path(f"/proc/{saved.one.container.init}/fd/0")
    wait_for(lambda: not init.exists(), "it lives on")
    saved.one.criu = saved.one.another_agent()
    with pytest.raises((NotFoundError, RestoreError)):
        saved.one.pages_done()
    ended = asyncio.to_thread(
        wait_for, lambda: not saved.serving() and not held(), "it waits", LIMIT
    )
    saved.one.run(ended)


class Coming:
    """A fetch of what a tree is made of. Behind the first MiB of memory it waits for `go`, and then
    fails if it is told to."""

    def __init__(self, one: Saved, pool: ThreadPoolExecutor) -> None:
        self.saved, self._pool = one, pool
        self.go, self.begins, self.fails = threading.Event(), threading.Event(), False
        self._bring: Callable[[Any, Any], int] = files._Fetching.bring
        run = one.one.run
        run(one.vault.pack(one.artifact, Tier.OBJECT, LIMIT))
        run(one.vault.drop(one.artifact, Tier.NVME))
        one.one.images = run(one.vault.begin(UID))

    def brought(self, work: Any, group: Any) -> int:
        """In place of `_Fetching.bring`."""
        if self.begins.is_set() and group[0].position:
            self.go.wait(LIMIT)
            if self.fails:
                raise CorruptError("a pack has lost a bit")
        return self._bring(work, group)

    def fetch(self) -> Future[object]:
        """From now on; a restore may begin when this returns."""
        one = self.saved
        call = one.another_vault().fetch(
            one.artifact, one.one.images, LIMIT, INTO, None, self.begins.set
        )
        found = self._pool.submit(lambda: asyncio.run(call))
        assert self.begins.wait(LIMIT)
        return found

    def restore(self) -> Future[object]:
        """Once it waits for memory."""
        one = self.saved.one
        found = self._pool.submit(one.restore)
        wait_for(self._waits, "nobody waits for memory", LIMIT)
        assert not found.done()
        return found

    def _waits(self) -> bool:
        return any(marks.Marks(at).wanted() > 0 for at in marks.pages_of(self.saved.one.images))


@pytest.fixture
def coming(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coming]:
    with ThreadPoolExecutor(2) as pool:
        found = Coming(saved, pool)

        def brought(work: Any, group: Any) -> int:
            return found.brought(work, group)

        monkeypatch.setattr(files._Fetching, "bring", brought)
        yield found
        found.go.set()


def test_a_tree_is_recreated_while_its_images_come(coming: Coming) -> None:
    fetching = coming.fetch()
    restoring = coming.restore()
    coming.go.set()
    fetching.result(LIMIT)
    restoring.result(LIMIT)
    coming.saved.one.thaw()
    coming.saved.see_running()
    coming.saved.see_right()


def test_a_tree_whose_images_never_come_is_not_made(coming: Coming) -> None:
    fetching = coming.fetch()
    restoring = coming.restore()
    coming.fails = True
    coming.go.set()
    with pytest.raises(CorruptError):
        fetching.result(LIMIT)
    with pytest.raises(RestoreError, match="is lost in every place"):
        restoring.result(LIMIT)
    # And again, from what comes as a whole.
    coming.fails = False
    one = coming.saved
    one.one.images = one.one.run(one.vault.begin(UID))
    one.one.run(one.another_vault().fetch(one.artifact, one.one.images, LIMIT, INTO))
    one.one.resume()
    one.see_right()
