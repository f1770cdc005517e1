"""What a tree had open leads elsewhere when it comes back: CRIU, which is root, must not go there.

The attacker is another container of the pod with the same emptyDir and the same user. While the
tree is away it puts links, or other files, where the tree's own were.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from kybernate.errors import RestoreError
from tests.kit.node.containers import wait_for
from tests.kit.node.programs import python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.hostile

NOBODY = "65534:65534"
ROOTS = "/proc/self/cwd/../.."
"""Of CRIU's working folder, the folder that the agent keeps its own in."""
SECRET = b"a root-only file of the node's " * 8
BEGIN = """
import ctypes, mmap, os, shutil, socket, subprocess, time
libc = ctypes.CDLL(None)
os.umask(0o077)
os.makedirs("/shared/folder", exist_ok=True)
with open("/shared/folder/file", "wb") as file:
    file.write(bytes({size}))
"""
END = """
print("ready")
number = 0
while True:
    number += 1
    time.sleep(0.01)
    if number % 10 == 0:
        print("alive", number)
"""


@dataclass(frozen=True)
class Attack:
    """What the tree opens, and what is put in place of `/shared/<victim>`: a link to there."""

    opens: str
    victim: str
    link: str
    user: str = NOBODY

    @property
    def program(self) -> str:
        return BEGIN.format(size=len(SECRET)) + self.opens + END


FILE, FOLDER = ("folder/file", f"{ROOTS}/secret"), ("folder", f"{ROOTS}/secrets")
ATTACKS = {
    "a log": Attack("one = open('/shared/folder/file', 'ab')\n", *FILE),
    "a file": Attack("one = open('/shared/folder/file', 'r+b')\n", *FILE),
    "a file, by its folder": Attack("one = open('/shared/folder/file', 'ab')\n", *FOLDER),
    "a folder": Attack("one = os.open('/shared/folder', os.O_RDONLY)\n", *FOLDER),
    "a folder, into CRIU's own": Attack(
        "one = os.open('/shared/folder', os.O_RDONLY)\n", "folder", "/proc/self/cwd"
    ),
    "a program that runs": Attack(
        "shutil.copy('/bin/busybox', '/shared/folder/busybox')\n"
        "subprocess.Popen(['/shared/folder/busybox', 'sleep', '600'])\n",
        *FOLDER,
    ),
    "a path": Attack("one = os.open('/shared/folder', os.O_PATH)\n", *FOLDER),
    "a mapping": Attack(
        "with open('/shared/folder/file', 'r+b') as file:\n    one = mmap.mmap(file.fileno(), 0)\n",
        *FILE,
    ),
    "the working folder": Attack("os.chdir('/shared/folder')\n", *FOLDER),
    "a deleted file": Attack(
        "one = open('/shared/folder/gone', 'w+b')\nos.unlink('/shared/folder/gone')\n", *FOLDER
    ),
    "a pipe with a name": Attack(
        "os.mkfifo('/shared/folder/pipe')\none = os.open('/shared/folder/pipe', os.O_RDWR)\n",
        "folder/pipe",
        f"{ROOTS}/pipe",
    ),
    "a socket": Attack(
        "one = socket.socket(socket.AF_UNIX)\none.bind('/shared/folder/socket')\none.listen()\n",
        *FOLDER,
    ),
    "a socket in the working folder": Attack(
        "os.chdir('/shared/folder')\n"
        "one = socket.socket(socket.AF_UNIX)\none.bind('socket')\none.listen()\nos.chdir('/')\n",
        *FOLDER,
    ),
    "a socket that a datagram socket speaks to": Attack(
        "one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "one.bind('/shared/folder/socket')\n"
        "two = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ntwo.connect(one.getsockname())\n",
        *FOLDER,
    ),
    "a datagram socket in the working folder": Attack(
        "os.chdir('/shared/folder')\n"
        "one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\none.bind('socket')\n"
        "two = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ntwo.connect('socket')\n"
        "os.chdir('/')\n",
        *FOLDER,
    ),
    "a deleted socket": Attack(
        "one = socket.socket(socket.AF_UNIX)\none.bind('/shared/folder/socket')\none.listen()\n"
        "os.unlink('/shared/folder/socket')\n",
        *FOLDER,
    ),
    "a root of its own": Attack(
        "if os.fork() == 0:\n    os.chroot('/shared/folder')\n    time.sleep(600)\n",
        *FOLDER,
        user="0:0",
    ),
    "a deleted program that runs": Attack(
        "shutil.copy('/bin/busybox', '/shared/folder/busybox')\n"
        "subprocess.Popen(['/shared/folder/busybox', 'sleep', '600'])\n"
        "os.unlink('/shared/folder/busybox')\n",
        *FOLDER,
    ),
    "a deleted mapping": Attack(
        "with open('/shared/folder/gone', 'w+b') as file:\n"
        "    file.write(bytes(8192))\n    file.flush()\n"
        "    one = mmap.mmap(file.fileno(), 0)\n"
        "os.unlink('/shared/folder/gone')\n",
        *FOLDER,
    ),
    "a watched folder": Attack(
        "one = libc.inotify_init1(0)\n"
        "assert libc.inotify_add_watch(one, b'/shared/folder', 0x100) >= 0\n",
        *FOLDER,
    ),
}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """The emptyDir."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    for one in (tmp_path, *tmp_path.parents[:2]):
        one.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def victim_of(seat: Callable[..., Seat], tmp_path: Path, shared: Path, attack: Attack) -> Seat:
    (tmp_path / "app").mkdir()
    mounts = {shared: "/shared"}
    return python(seat, tmp_path / "app", attack.program, mounts=mounts, user=attack.user)


def neighbour_of(
    seat: Callable[..., Seat], shared: Path, user: str = NOBODY
) -> Callable[[str], str]:
    """The attacker's container: runs Python in it, by default as most tenants' users."""
    one = seat("/bin/busybox", "sleep", "600", mounts={shared: "/shared"}, user=user)
    return lambda script: one.container.inside("python3", "-c", "import os, socket\n" + script)


def lay_secrets(root: Path, shared: Path) -> None:
    (root / "secret").write_bytes(SECRET)
    (root / "secret").chmod(0o600)
    shutil.rmtree(root / "secrets", ignore_errors=True)
    (root / "secrets").mkdir(mode=0o700)
    (root / "secrets/file").write_bytes(SECRET)
    (root / "secrets/file").chmod(0o600)
    with suppress(FileNotFoundError):
        shutil.copy(shared / "folder/busybox", root / "secrets/busybox")
    (root / "pipe").unlink(missing_ok=True)
    os.mkfifo(root / "pipe", 0o600)


def is_untouched(root: Path) -> bool:
    names = [one.name for one in (root / "secrets").iterdir() if one.name != "busybox"]
    bytes_ = [(root / name).read_bytes() for name in ("secret", "secrets/file")]
    return names == ["file"] and bytes_ == [SECRET, SECRET]


def is_alive(one: Seat) -> bool:
    before = one.container.log.count("alive")
    wait_for(lambda: one.container.log.count("alive") > before, one.logs)
    return True


@pytest.mark.always
@pytest.mark.parametrize("name", ATTACKS)
def test_a_link_to_the_agents_folders_is_not_followed(
    name: str, seat: Callable[..., Seat], tmp_path: Path, shared: Path
) -> None:
    attack = ATTACKS[name]
    victim = victim_of(seat, tmp_path, shared, attack)
    neighbour = neighbour_of(seat, shared, attack.user)
    lay_secrets(victim.node.work, shared)
    victim.park()
    neighbour(
        f"os.rename('/shared/{attack.victim}', '/shared/kept')\n"
        f"os.symlink('{attack.link}', '/shared/{attack.victim}')"
    )
    with pytest.raises(RestoreError) as caught:
        victim.restore()
    assert caught.value.refused, f"its state would be given up: {caught.value}"
    assert is_untouched(victim.node.work)
    assert victim.container.comm == "kyb-parked"

    neighbour(
        f"os.unlink('/shared/{attack.victim}')\n"
        f"os.rename('/shared/kept', '/shared/{attack.victim}')"
    )
    victim.resume()
    assert is_alive(victim), "what is as it was comes back"


INSIDE = {
    "a link to where it was": "os.symlink('kept', '/shared/folder')",
    "another folder": "os.mkdir('/shared/folder', 0o700)",
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_not_what_was_dumped_is_refused(
    name: str, seat: Callable[..., Seat], tmp_path: Path, shared: Path
) -> None:
    victim = victim_of(seat, tmp_path, shared, ATTACKS["a folder"])
    neighbour = neighbour_of(seat, shared)
    victim.park()
    neighbour("os.rename('/shared/folder', '/shared/kept')\n" + INSIDE[name])
    with pytest.raises(RestoreError):
        victim.restore()


FILE_AT = "/shared/folder/file"
AWAY = "os.rename('/shared/{0}', '/shared/kept')"
CHANGES = {
    # What was deleted is made again wherever there is no folder, and is deleted again.
    **{f"{name} is gone": (name, AWAY) for name in ATTACKS if not name.startswith("a deleted")},
    "a file is cut": ("a file", f"os.truncate('{FILE_AT}', 1)"),
    "a file is longer": ("a file", f"os.truncate('{FILE_AT}', {len(SECRET) + 1})"),
    "a mapping is cut": ("a mapping", f"os.truncate('{FILE_AT}', 1)"),
    "a file has another mode": ("a file", f"os.chmod('{FILE_AT}', 0o640)"),
    "its folder is a file": (
        "a file, by its folder",
        "os.rename('/shared/folder', '/shared/kept')\nopen('/shared/folder', 'w').close()",
    ),
}
BACK = f"""
if os.path.exists('/shared/kept'):
    if os.path.exists('/shared/folder') and not os.path.isdir('/shared/folder'):
        os.unlink('/shared/folder')
    os.rename('/shared/kept', '/shared/{{0}}')
elif os.path.exists('{FILE_AT}'):
    os.truncate('{FILE_AT}', {len(SECRET)})
    os.chmod('{FILE_AT}', 0o600)
"""


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_neighbour_takes_away_or_changes_costs_no_state(
    name: str, seat: Callable[..., Seat], tmp_path: Path, shared: Path
) -> None:
    of, does = CHANGES[name]
    attack = ATTACKS[of]
    victim = victim_of(seat, tmp_path, shared, attack)
    neighbour = neighbour_of(seat, shared, attack.user)
    victim.park()
    neighbour(does.format(attack.victim))
    with pytest.raises(RestoreError) as caught:
        victim.restore()
    assert caught.value.refused, f"its state would be given up: {caught.value}"

    neighbour(BACK.format(attack.victim))
    victim.resume()
    assert is_alive(victim), "what is as it was comes back"


@pytest.mark.always
def test_another_file_of_the_same_size_is_refused(
    seat: Callable[..., Seat], tmp_path: Path, shared: Path
) -> None:
    victim = victim_of(seat, tmp_path, shared, ATTACKS["a file"])
    neighbour = neighbour_of(seat, shared)
    victim.park()
    neighbour(
        "os.umask(0o077)\n"
        "data = open('/shared/folder/file', 'rb').read()\n"
        "open('/shared/other', 'wb').write(data)\n"
        "os.rename('/shared/other', '/shared/folder/file')"
    )
    with pytest.raises(RestoreError, match="is another one now") as caught:
        victim.restore()
    assert caught.value.refused


def test_a_pipe_in_place_of_a_file_holds_nobody_up(
    seat: Callable[..., Seat], tmp_path: Path, shared: Path
) -> None:
    victim = victim_of(seat, tmp_path, shared, ATTACKS["a log"])
    neighbour = neighbour_of(seat, shared)
    victim.park()
    neighbour("os.unlink('/shared/folder/file')\nos.mkfifo('/shared/folder/file', 0o600)")
    with pytest.raises(RestoreError, match="is of type") as caught:
        victim.restore(deadline=10.0)
    assert caught.value.refused


def test_a_file_that_the_images_call_external_is_not_opened_by_its_path(
    seat: Callable[..., Seat], tmp_path: Path, shared: Path
) -> None:
    """Such a one would be passed in, as the tree's output is; nobody looks where its path leads."""
    victim = victim_of(seat, tmp_path, shared, ATTACKS["a log"])
    neighbour = neighbour_of(seat, shared)
    lay_secrets(victim.node.work, shared)
    victim.park()
    call_external(victim.images / "files.img", b"/shared/folder/file")
    neighbour(
        "os.rename('/shared/folder/file', '/shared/kept')\n"
        f"os.symlink('{ROOTS}/secret', '/shared/folder/file')"
    )
    with pytest.raises(RestoreError, match="was not passed in"):
        victim.restore()
    assert is_untouched(victim.node.work)


def call_external(path: Path, name: bytes) -> None:
    """Sets `ext` of the regular file of this name: after its entry's type and number."""
    data = path.read_bytes()
    changed, at, count = data[:8], 8, 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        one, at = data[at + 4 : at + 4 + size], at + 4 + size
        head, _, _ = one.partition(name)
        if head != one:
            start = next(
                number
                for number, byte in enumerate(head)
                if byte == 0x1A and varint(len(one) - number - 2) == one[number + 1 : number + 2]
            )
            inside = one[start + 2 :] + b"\x48\x01"
            one = one[: start + 1] + varint(len(inside)) + inside
            count += 1
        changed += struct.pack("<I", len(one)) + one
    assert count == 1
    path.write_bytes(changed)


def varint(number: int) -> bytes:
    return bytes((number,)) if number < 128 else bytes((number & 0x7F | 0x80, number >> 7))


@pytest.mark.always
def test_another_container_follows_no_link_either(
    seat: Callable[..., Seat], tmp_path: Path, shared: Path
) -> None:
    victim = victim_of(seat, tmp_path, shared, ATTACKS["a folder"])
    victim.freeze()
    number = victim.container.number_inside(victim.container.tree)
    victim.dump()
    victim.end()
    mounts = {shared: "/shared", tmp_path / "app": "/app"}
    other = seat(init=("--parked", str(number)), mounts=mounts, user=NOBODY)
    shutil.copytree(victim.images, other.images)
    (shared / "folder").rename(shared / "kept")
    (shared / "folder").symlink_to("kept")
    with pytest.raises(RestoreError):
        other.restore()
    (shared / "folder").unlink()
    shutil.copytree(shared / "kept", shared / "folder")
    os.chown(shared / "folder", 65534, 65534)
    other.resume()
    assert is_alive(other), "a copy of the folder is as good in another container"


PLACES = ("cwd", "fd/90", "fd/91", "fd/92", "fd/96")


def led_to(pid: int | None) -> Iterator[str]:
    """What is above the folders that CRIU is in, or has open."""
    for place in PLACES:
        here = f"/proc/{pid}/{place}"
        nowhere = os.path.samefile(f"{here}/..", f"{here}/.")
        yield f"{place} leads {'nowhere' if nowhere else 'out'}"


def log_of(victim: Seat) -> Path:
    """CRIU opens it once it is in its folder, with all that it was given. A FIFO, it holds CRIU
    there until somebody opens the other end."""
    victim.check()
    (work,) = (victim.node.work / "criu").glob(f"{victim.container.init}-*")
    log = work / "dump.log"
    os.mkfifo(log, 0o600)
    return log


def is_beside(pid: int | None, log: Path) -> bool:
    """Whether this process has come into the folder of the file."""
    with suppress(OSError):
        return pid is not None and os.path.samefile(f"/proc/{pid}/cwd/{log.name}", log)
    return False


@pytest.mark.always
def test_nothing_leads_out_of_crius_own_folders(
    seat: Callable[..., Seat], tmp_path: Path, shared: Path
) -> None:
    """By names of sockets the kernel goes itself; so there is nowhere to go to."""
    victim = victim_of(seat, tmp_path, shared, ATTACKS["a log"])
    victim.freeze()
    log = log_of(victim)

    async def look() -> set[str]:
        victim.renew()
        init = victim.container.init
        call = asyncio.ensure_future(victim.criu.dump(init, victim.handle, victim.images, 60.0))
        try:
            await asyncio.to_thread(
                wait_for, lambda: is_beside(victim.criu_pid(), log), "CRIU comes to no log"
            )
            return set(led_to(victim.criu_pid()))
        finally:
            end = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
            await call
            os.close(end)

    seen = victim.run(look())
    victim.keep()
    victim.thaw()
    assert seen == {f"{place} leads nowhere" for place in PLACES}
