"""Which mounts of a container are its own, and go with its saved state."""

from __future__ import annotations

import pytest

from kybernate.adapters.treefiles.mounts import Mount, is_own, nearest, own_of, parse

UID = "5e1f0a00-aaaa-bbbb-cccc-0123456789ab"
VOLUMES = f"/var/lib/kubelet/pods/{UID}/volumes"
SANDBOX = "0f" * 32
CONTAINERD = f"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{SANDBOX}/shm"
CRI_O = f"/run/containers/storage/overlay-containers/{SANDBOX}/userdata/shm"
NODE = parse(
    "\n".join(
        [
            "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
            "23 22 0:30 / /dev/shm rw shared:2 - tmpfs tmpfs rw",
            "24 22 0:31 / /run rw shared:3 - tmpfs tmpfs rw,size=1k",
            f"25 22 0:40 / {VOLUMES}/kubernetes.io~empty-dir/fast rw shared:4 - tmpfs tmpfs rw",
            f"26 22 0:41 / {VOLUMES}/kubernetes.io~secret/token rw shared:5 - tmpfs tmpfs rw",
            f"27 22 0:42 / {VOLUMES}/kubernetes.io~projected/api rw shared:6 - tmpfs tmpfs rw",
            f"28 24 0:43 / {CONTAINERD} rw shared:7 - tmpfs shm rw,size=65536k",
            f"29 24 0:44 / {CRI_O} rw shared:8 - tmpfs shm rw",
            f"30 22 0:50 / {VOLUMES}/kubernetes.io~nfs/models rw - nfs4 server:/models rw",
            f"31 22 0:51 / {VOLUMES}/kubernetes.io~empty-dir/huge rw - hugetlbfs nodev rw",
        ]
    )
)

CASES = {
    "an emptyDir on kubelet's disk": (f"8:1 {VOLUMES}/kubernetes.io~empty-dir/x ext4", True),
    "kubelet's folder on a disk of its own": (
        f"8:2 /pods/{UID}/volumes/kubernetes.io~empty-dir/x xfs",
        True,
    ),
    "a folder of an emptyDir (subPath)": (
        f"8:1 {VOLUMES}/kubernetes.io~empty-dir/x/sub ext4",
        True,
    ),
    "an emptyDir in memory": ("0:40 / tmpfs", True),
    "a folder of one": ("0:40 /sub tmpfs", True),
    "a tmpfs that the runtime made in the container": ("0:99 / tmpfs", True),
    "the pod's /dev/shm by containerd": ("0:43 / tmpfs", True),
    "the pod's /dev/shm by CRI-O": ("0:44 / tmpfs", True),
    "the node's /dev/shm (hostPath)": ("0:30 / tmpfs", False),
    "a folder of the node's /run (hostPath)": ("0:31 /scratch tmpfs", False),
    "a secret": ("0:41 / tmpfs", False),
    "a service account's token": ("0:42 / tmpfs", False),
    "a PVC over the network": ("0:50 / nfs4", False),
    "a PVC on a disk": ("8:16 / ext4", False),
    "a hostPath": ("8:1 /srv/scratch ext4", False),
    "a PVC's folder with a misleading name": ("0:50 /kubernetes.io~empty-dir/x nfs4", False),
    "an emptyDir of huge pages, which take no files": ("0:51 / hugetlbfs", False),
    "an overlay that is not the root": ("0:60 / overlay", False),
}


@pytest.mark.parametrize(("words", "own"), CASES.values(), ids=CASES)
def test_what_goes_with_the_pod_is_its_own(words: str, own: bool) -> None:
    device, root, kind = words.split()
    assert is_own(Mount(device, root, "/tmp", kind=kind), NODE) is own


def test_a_line_of_the_kernels_is_understood() -> None:
    (found,) = parse(
        r"36 35 98:0 /a\040b /mnt\040é\134x ro,noatime master:1 propagate_from:2 - "
        "overlay none rw,upperdir=/u"
    )
    assert (found.device, found.root, found.point) == ("98:0", "/a b", "/mnt é\\x")
    assert (found.options, found.kind) == (("ro", "noatime"), "overlay")
    assert found.more == ("rw", "upperdir=/u")


def test_a_path_lies_on_the_nearest_mount() -> None:
    lines = ("0:60 / / overlay", "0:99 / /dev tmpfs", "8:16 / /dev/shm ext4", "0:5 / /proc proc")
    there = {words[2]: Mount(*words[:3], kind=words[3]) for words in map(str.split, lines)}
    own = own_of(there, NODE)
    assert own == {"/": True, "/dev": True, "/dev/shm": False, "/proc": False}
    for path, point in {
        "/tmp/x": "/",
        "/dev/shm": "/dev/shm",
        "/dev/shm/a/b": "/dev/shm",
        "/dev/shmx": "/dev",
        "/": "/",
    }.items():
        assert nearest(path, own) == point
