"""The images that the cluster's pods run, built in the cache and rebuilt only if inputs change."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from images import build as ours
from images import debs, wheels
from images.build import folder_layer, python_layers
from images.cache import file_lock
from images.oci import ImageConfig, Layer
from images.recipes import RECIPES
from kybernate.errors import ConfigError, KybernateError
from tests.cluster.fetched import binaries, llama, nodejs, servers
from tests.cluster.fetched.layers import APPLETS, BUSYBOX, Image, image_of, key_of, layer_of
from tests.cluster.layout import REPOSITORY, cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.cluster.layout import Progress

HERE = Path(__file__).resolve().parent
WORKLOADS = REPOSITORY / "tests" / "workloads"
SCHEDULER_IMAGE = f"localhost/kube-scheduler:v{binaries.KUBERNETES_VERSION}"
COMPILE_LIMIT = 60.0
"""Seconds that compiling one small program may take."""


def pause(progress: Progress) -> Image:
    """What holds a pod's namespaces: one static binary that reaps."""
    binary = pause_binary(progress)

    def fill(layer: Layer) -> None:
        layer.file("pause", binary.read_bytes(), 0o755)

    return image_of("localhost/pause:1", [layer_of([binary], fill)], ImageConfig(("/pause",)))


def pause_binary(progress: Progress) -> Path:
    """The static reaper; it is also PID 1 of every node. Raises KybernateError."""
    source = HERE / "pause.c"
    target = cache_root() / "images" / f"pause-{key_of([source])}"
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            progress("compiling pause")
            argv = ["gcc", "-static", "-Os", "-s", "-Wall", "-Werror", "-o", f"{target}.part"]
            _run([*argv, str(source)], "compiling pause.c failed")
            Path(f"{target}.part").replace(target)
    return target


def busybox(progress: Progress) -> Image:
    """A shell and the usual small commands, for tests."""
    unpacked = debs.unpack(BUSYBOX, progress)
    binary = unpacked.folder / "bin" / "busybox"

    def fill(layer: Layer) -> None:
        _skeleton(layer)
        layer.file("bin/busybox", binary.read_bytes(), 0o755)
        for applet in APPLETS:
            layer.link(f"bin/{applet}", "busybox")

    config = ImageConfig(command=("/bin/sh",))
    return image_of("localhost/busybox:1", [layer_of([binary], fill)], config)


def toy(progress: Progress) -> Image:
    """The toy model server and the counter, on Debian's Python and pinned wheels."""
    sources = sorted(WORKLOADS.rglob("*.py"))
    # The agent's image has the same first layers: nodes hold them once.
    base = [*python_layers(progress, cxx=True), folder_layer(wheels.build("node", progress))]

    def fill(layer: Layer) -> None:
        for source in sources:
            name = source.relative_to(WORKLOADS)
            layer.file(f"app/tests/workloads/{name}", source.read_bytes())

    config = ImageConfig(
        entrypoint=("/usr/bin/python3",),
        command=("-m", "tests.workloads.toy_server"),
        env=(
            "PATH=/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH=/app",
            "PYTHONUNBUFFERED=1",
            "PYTHONDONTWRITEBYTECODE=1",
        ),
        workdir="/app",
    )
    return image_of("localhost/toy:1", [*base, layer_of(sources, fill)], config)


def scheduler(progress: Progress) -> Image:
    """The kube-scheduler that the cluster runs as a process, for pods of config/."""
    binary = binaries.ensure(("kube-scheduler",), progress).path("kube-scheduler")

    def fill(layer: Layer) -> None:
        layer.file("usr/local/bin/kube-scheduler", binary.read_bytes(), 0o755)

    layers = [*python_layers(progress, cxx=False), layer_of([binary], fill)]
    config = ImageConfig(command=("kube-scheduler",), env=("PATH=/usr/local/bin:/usr/bin:/bin",))
    return image_of(SCHEDULER_IMAGE, layers, config)


def of_service(name: str) -> Callable[[Progress], Image]:
    """The image of one of our services, as `make images` builds it."""

    def make(progress: Progress) -> Image:
        (built,) = ours.build([name], progress)
        return Image(built.name, built.archive)

    return make


BUILDERS: dict[str, Callable[[Progress], Image]] = {
    "pause": pause,
    "busybox": busybox,
    "toy": toy,
    "servers": servers.build,
    "llama": llama.build,
    "node": nodejs.build,
    "kube-scheduler": scheduler,
    **{name: of_service(name) for name in RECIPES},
}


def build(names: Sequence[str], progress: Progress) -> list[Image]:
    """The named images. Raises ConfigError for an unknown name, KybernateError if one fails."""
    for name in names:
        if name not in BUILDERS:
            raise ConfigError("images", f"{name} is unknown; there are {', '.join(BUILDERS)}")
    return [BUILDERS[name](progress) for name in names]


def _skeleton(layer: Layer) -> None:
    """The folders that a container expects and no package brings."""
    for name in ("dev", "proc", "sys", "run", "root", "var/log", "etc", "usr/lib"):
        layer.folder(name)
    layer.folder("tmp", 0o1777)
    layer.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    layer.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")


def _run(argv: list[str], failure: str) -> None:
    try:
        run = subprocess.run(
            argv, capture_output=True, text=True, timeout=COMPILE_LIMIT, check=False
        )
    except FileNotFoundError as error:
        raise KybernateError(f"{failure}: {argv[0]} is missing") from error
    if run.returncode:
        tail = " / ".join(run.stderr.strip().splitlines()[-3:])
        raise KybernateError(f"{failure}: {tail}")
