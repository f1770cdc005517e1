"""Images that were changed since they were written: CRIU would give a tree what they say."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import pytest

from kybernate.adapters.criu.record import Record
from kybernate.errors import RestoreError
from kybernate.gen.criuimages_pb2 import Core, Namespaces, Seccomp
from tests.kit.node.containers import wait_for
from tests.kit.node.programs import python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.hostile

M = TypeVar("M", Core, Namespaces, Seccomp)
PROGRAM = """
import os, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready")
while True:
    print("as", os.getuid())
    time.sleep(0.02)
"""
FILTERS_ITSELF = (
    """
import ctypes, struct
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
given = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
assert ctypes.CDLL(None).prctl(22, 2, given) == 0
"""
    + PROGRAM
)
ALL = [(1 << 32) - 1, 255]


def to_root(core: Core) -> None:
    creds = core.thread.creds
    creds.uid = creds.euid = creds.suid = creds.fsuid = 0


def to_all(core: Core) -> None:
    core.thread.creds.cap_prm[:] = core.thread.creds.cap_eff[:] = ALL


def to_root_ended(core: Core) -> None:
    """CRIU takes no notice of a thread's own state."""
    to_root(core)
    core.task.state = 2


CHANGES: dict[str, tuple[Callable[[Core], object], str]] = {
    "root": (to_root, "as user 0"),
    "root, as if it had ended": (to_root_ended, "as user 0"),
    "a group": (lambda core: core.thread.creds.groups.append(42), "as group 42"),
    "capabilities": (to_all, "permitted capabilities"),
    "a bounding set": (
        lambda core: core.thread.creds.cap_bnd.__setitem__(slice(None), ALL),
        "bounding capabilities",
    ),
    "new privileges": (
        lambda core: setattr(core.thread.creds, "no_new_privs", 0),
        "forbids new privileges",
    ),
    "no seccomp filter, a process": (
        lambda core: core.thread.ClearField("seccomp_mode"),
        "seccomp",
    ),
    "no seccomp filter, a process by its old field": (
        lambda core: setattr(core.task, "old_seccomp_mode", 0),
        "old releases",
    ),
}
SPACES = ("pid", "net", "ipc", "uts", "mnt", "user")


def without_rights(core: Core) -> None:
    """CRIU would then take them from a file of an older format."""
    core.thread.ClearField("creds")


@pytest.fixture
def parked(seat: Callable[..., Seat], tmp_path: Path) -> Seat:
    """Nobody's, under a seccomp filter, who may gain nothing; two threads, so two images."""
    (tmp_path / "app").mkdir()
    one = python(seat, tmp_path / "app", PROGRAM, user="65534:65534", flags=("--seccomp",))
    one.park()
    return one


def change(path: Path, message: M, how: Callable[[M], object]) -> None:
    """Changes the first message of an image; what isn't known of it stays."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<I", data, 8)
    message.ParseFromString(data[12 : 12 + size])
    how(message)
    changed = message.SerializeToString()
    path.write_bytes(data[:8] + struct.pack("<I", len(changed)) + changed + data[12 + size :])


@pytest.mark.parametrize("name", CHANGES)
def test_more_than_the_container_has_is_not_given_back(name: str, parked: Seat) -> None:
    how, said = CHANGES[name]
    kept = {path: path.read_bytes() for path in parked.images.glob("core-*.img")}
    assert len(kept) >= 3, "kyb-tree and two threads"
    ordered = sorted(kept, key=lambda path: int(path.stem.partition("-")[2]))
    change(ordered[0 if "process" in name else -1], Core(), how)
    with pytest.raises(RestoreError, match=said) as caught:
        parked.restore()
    assert caught.value.refused, "its state is kept"
    assert parked.container.comm == "kyb-parked"

    for path, data in kept.items():
        path.write_bytes(data)
    parked.resume()
    before = parked.container.log.count("as 65534")
    wait_for(lambda: parked.container.log.count("as 65534") > before, parked.logs)


def test_a_filter_that_its_threads_do_not_get_is_refused(parked: Seat) -> None:
    """They have none in their own images, as CRIU writes it where all threads have the same."""

    def for_the_first(filters: Seccomp) -> None:
        assert all(one.flags & 1 for one in filters.filters)
        for one in filters.filters:
            one.flags = 0

    change(parked.images / "seccomp.img", Seccomp(), for_the_first)
    with pytest.raises(RestoreError, match="seccomp"):
        parked.restore()


def test_filters_in_place_of_those_of_process_1_are_refused(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    """A filter of its own lets everything through: without the container's it is none."""
    (tmp_path / "app").mkdir()
    flags = ("--seccomp",)
    one = python(seat, tmp_path / "app", FILTERS_ITSELF, user="65534:65534", flags=flags)
    one.park()
    # kyb-tree, the program, its thread.
    path = sorted(one.images.glob("core-*.img"), key=lambda path: int(path.stem[5:]))[1]
    kept, filters = path.read_bytes(), (one.images / "seccomp.img").read_bytes()
    programs = [one.filter for one in Seccomp.FromString(filters[12:]).filters]
    own = min(range(len(programs)), key=lambda at: len(programs[at]))
    change(path, Core(), lambda core: setattr(core.thread, "seccomp_filter", own))
    with pytest.raises(RestoreError, match="differ in the seccomp filters") as caught:
        one.restore()
    assert caught.value.refused, "its state is kept"
    path.write_bytes(kept)
    one.resume()
    before = one.container.log.count("as 65534")
    wait_for(lambda: one.container.log.count("as 65534") > before, one.logs)


def test_crius_own_ipc_namespace_is_none_of_the_trees(parked: Seat) -> None:
    """For System V shared memory CRIU stands outside the container's."""
    written = Record.read(parked.images)
    replace(written, ipc=True).write(parked.images)
    with pytest.raises(RestoreError, match="ipc namespace of their own"):
        parked.restore()


@pytest.mark.parametrize("name", SPACES)
def test_a_namespace_of_its_own_is_not_made(name: str, parked: Seat) -> None:
    path = min(parked.images.glob("ids-*.img"))
    change(path, Namespaces(), lambda ids: setattr(ids, name, 99))
    with pytest.raises(RestoreError, match=f"{name} namespace of its own"):
        parked.restore()


def test_a_process_of_which_too_little_is_said_is_refused(parked: Seat) -> None:
    change(min(parked.images.glob("core-*.img")), Core(), without_rights)
    with pytest.raises(RestoreError, match="too little"):
        parked.restore()


def test_mounts_in_the_images_are_refused(parked: Seat) -> None:
    (parked.images / "mountpoints-12.img").write_bytes(b"whatever")
    with pytest.raises(RestoreError, match=r"mountpoints-12\.img"):
        parked.restore()


@pytest.mark.parametrize("name", ["inventory.img", "core-*.img"])
def test_images_that_are_cut_off_are_refused(name: str, parked: Seat) -> None:
    path = min(parked.images.glob(name))
    path.write_bytes(path.read_bytes()[:11])
    with pytest.raises(RestoreError, match="cut off"):
        parked.restore()
