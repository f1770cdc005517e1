"""Links that a container lays over the paths that the agent, which is root, walks in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu.checks import descriptors, watches
from kybernate.adapters.treefiles import gather
from tests.kit.node.programs import python

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.hostile

WATCHES = """
import ctypes, os, time
libc = ctypes.CDLL(None)
os.makedirs("/shared/folder/below", exist_ok=True)
one = libc.inotify_init1(0)
assert libc.inotify_add_watch(one, b"/shared/folder/below", 0x100) >= 0
for place in ("/config", "/data", "/opt"):
    if not os.path.lexists(place):
        os.symlink({outside!r}, place)
assert os.path.islink("/config")
print("ready")
while True:
    time.sleep(1)
"""


@pytest.fixture
def watcher(seat: Callable[..., Seat], tmp_path: Path) -> Seat:
    """A tree that watches a folder of a volume, and has laid links to the node's path of it."""
    (tmp_path / "app").mkdir()
    (tmp_path / "volume").mkdir()
    mounts = {tmp_path / "volume": "/shared"}
    script = WATCHES.format(outside=str(tmp_path))
    return python(seat, tmp_path / "app", script, mounts=mounts)


def test_what_is_watched_is_looked_for_in_the_container_alone(watcher: Seat) -> None:
    with watcher.criu._opened(watcher.container.init, watcher.handle) as container:
        found, lost = watches.folders(container, descriptors.of(container))
    assert (found, lost) == (["/shared/folder/below"], [])


def test_such_a_tree_comes_back(watcher: Seat) -> None:
    watcher.park()
    watcher.resume()


def test_nothing_is_gathered_from_behind_a_link(seat: Callable[..., Seat], tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/file").write_text("the node's")
    script = (
        "import os, time\n"
        f"os.symlink('{tmp_path}/secrets', '/tmp/secrets')\n"
        f"os.symlink('{tmp_path}/secrets/file', '/tmp/file')\n"
        "print('ready')\ntime.sleep(600)\n"
    )
    one = python(seat, tmp_path / "app", script)
    one.renew()
    gather(one.container.init, one.images, 1 << 20, 30.0)
    packed = b"".join(path.read_bytes() for path in Path(one.images).iterdir())
    assert b"the node's" not in packed
