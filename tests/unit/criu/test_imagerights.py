"""Images are held against the container's process 1: its seccomp filters and security label."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu.checks import imagerights
from kybernate.adapters.criu.record import Record
from kybernate.gen.criuimages_pb2 import Core, Inventory, Namespaces, Process, Seccomp

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

INIT, TREE, APP, THREAD = 7, 2, 3, 4
BASE, RUNTIME, OWN = b"of the container", b"of the runtime", b"of the program"
FILTER = 2
APPARMOR, SELINUX = 2, 1
POD = "system_u:system_r:container_t:s0:c1,c2"
OTHER = "system_u:system_r:container_t:s0:c3,c4"


class Images:
    """Those of kyb-tree and a program of two threads, below a process 1 with two filters."""

    def __init__(self, folder: Path, proc: Path) -> None:
        self.folder = folder
        self.container = SimpleNamespace(proc=str(proc), init=INIT)
        self.chains = dict.fromkeys((TREE, APP, THREAD), (BASE, RUNTIME))
        self.lsm, self.label, self.sockets = 0, "", ""
        self.init = proc / str(INIT)
        (self.init / "attr").mkdir(parents=True)
        self.is_labelled("")
        lines = ["Uid:\t0", "Gid:\t0", "Seccomp:\t2", "Seccomp_filters:\t2"]
        (self.init / "status").write_text("\n".join(lines))
        Record(TREE, THREAD, ("", "", "")).write(folder)

    def is_labelled(self, label: str) -> None:
        (self.init / "attr" / "current").write_text(label + "\n")

    def problems(self) -> list[str]:
        filters = Seccomp()
        for pid, chain in self.chains.items():
            # As CRIU writes them: the newest first, and threads name their oldest.
            self._core(pid, len(filters.filters) + len(chain) - 1, bool(chain))
            for at, program in enumerate(reversed(chain)):
                one = filters.filters.add(filter=program)
                if at:
                    one.prev = len(filters.filters) - 2
        self._write("seccomp.img", 0x64413049, filters)
        self._write("inventory.img", 0x58313116, Inventory(own=Namespaces(), lsm=self.lsm))
        threads = (Process(pid=TREE, threads=[TREE]), Process(pid=APP, threads=[APP, THREAD]))
        self._write("pstree.img", 0x50273030, *threads)
        return list(imagerights.problems(self.container, self.folder))

    def _core(self, pid: int, last: int, filtered: bool) -> None:
        core = Core()
        core.task.state = 1
        core.thread.creds.SetInParent()
        core.thread.creds.lsm_profile = self.label
        core.thread.creds.lsm_sockcreate = self.sockets
        if filtered:
            core.thread.seccomp_mode, core.thread.seccomp_filter = FILTER, last
        self._write(f"core-{pid}.img", 0x55053847, core)

    def _write(self, name: str, magic: int, *messages: Message) -> None:
        data = [one.SerializeToString() for one in messages]
        framed = b"".join(struct.pack("<I", len(one)) + one for one in data)
        (self.folder / name).write_bytes(struct.pack("<II", 0x54564319, magic) + framed)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    (tmp_path / "images").mkdir()
    return Images(tmp_path / "images", tmp_path / "proc")


def test_a_tree_with_the_filters_of_process_1_and_more_is_restored(images: Images) -> None:
    images.chains[APP] = images.chains[THREAD] = (BASE, RUNTIME, OWN)
    assert images.problems() == []


@pytest.mark.parametrize("pid", [TREE, APP, THREAD])
def test_fewer_filters_than_process_1_has_are_refused(images: Images, pid: int) -> None:
    images.chains[pid] = (BASE,)
    (said,) = images.problems()
    assert said == "a process has 1 seccomp filters, the container's process 1 2"


@pytest.mark.parametrize("chain", [(BASE, OWN), (OWN, RUNTIME, BASE), (RUNTIME, BASE)])
def test_filters_in_place_of_those_of_process_1_are_refused(
    images: Images, chain: tuple[bytes, ...]
) -> None:
    images.chains[THREAD] = chain
    (said,) = images.problems()
    assert "differ in the seccomp filters" in said


def test_a_chain_in_a_circle_has_no_filters(images: Images) -> None:
    images.problems()
    path = images.folder / "seccomp.img"
    filters = Seccomp.FromString(path.read_bytes()[12:])
    filters.filters[0].prev = 1
    images._write("seccomp.img", 0x64413049, filters)
    found = list(imagerights.problems(images.container, images.folder))
    assert found == ["a process has 0 seccomp filters, the container's process 1 2"]


@pytest.mark.parametrize(
    ("lsm", "written", "own"),
    [
        (APPARMOR, "cri-containerd.apparmor.d", "cri-containerd.apparmor.d (enforce)"),
        (APPARMOR, "", "unconfined"),
        (SELINUX, POD, POD),
        (0, "", ""),
        (0, "", POD),
    ],
)
def test_the_containers_own_label_is_restored(
    images: Images, lsm: int, written: str, own: str
) -> None:
    images.lsm, images.label = lsm, written
    images.is_labelled(own)
    assert images.problems() == []


@pytest.mark.parametrize(
    ("lsm", "written", "own"),
    [
        (APPARMOR, "", "cri-containerd.apparmor.d (enforce)"),
        (APPARMOR, "weaker", "cri-containerd.apparmor.d (enforce)"),
        (APPARMOR, "weaker", "unconfined"),
        (SELINUX, OTHER, POD),
        (SELINUX, "", POD),
        (SELINUX, POD, ""),
    ],
)
def test_another_label_is_refused(images: Images, lsm: int, written: str, own: str) -> None:
    images.lsm, images.label = lsm, written
    images.is_labelled(own)
    assert images.problems()
    assert all("label" in one for one in images.problems())


def test_sockets_get_no_other_label(images: Images) -> None:
    images.lsm, images.label, images.sockets = SELINUX, POD, OTHER
    images.is_labelled(POD)
    assert all("labels its sockets" in one for one in images.problems())
    images.sockets = POD
    assert images.problems() == []


def test_images_without_a_profile_are_refused_where_criu_would_have_seen_one(
    images: Images, tmp_path: Path
) -> None:
    images.is_labelled("cri-containerd.apparmor.d (enforce)")
    assert images.problems() == []
    (tmp_path / "proc/self/root/sys/kernel/security/apparmor").mkdir(parents=True)
    (said,) = images.problems()
    assert "name no security profile" in said
