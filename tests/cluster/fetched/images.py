"""The images that the cluster's pods run, built in the cache and rebuilt only if inputs change."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from images import build as ours
from images import debs, wheels
from images.build import folder_layer, python_layers
from images.cache import file_lock
from images.oci import Blob, ImageConfig, Layer, blob, write_archive
from images.recipes import RECIPES
from kybernate.errors import ConfigError, KybernateError
from tests.cluster.fetched import binaries
from tests.cluster.layout import REPOSITORY, cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.cluster.layout import Progress

HERE = Path(__file__).resolve().parent
WORKLOADS = REPOSITORY / "tests" / "workloads"
BUSYBOX = debs.DebSet("busybox", "bookworm", (("busybox-static", "1:1.35.0-4+deb12u1+b1"),))
SCHEDULER_IMAGE = f"localhost/kube-scheduler:v{binaries.KUBERNETES_VERSION}"
COMPILE_LIMIT = 60.0
"""Seconds that compiling one small program may take."""

_WORDS = (
    "ash cat chmod cp cut date dd df du echo env false find grep head hostname httpd id ip kill",
    "ls mkdir mount mv nc od ping printf ps pwd readlink rm rmdir sed seq sh sha256sum sleep",
    "sort stat sync tail tar tee test timeout touch tr true uname uniq vi wc wget xargs",
)
APPLETS = " ".join(_WORDS).split()
"""Commands of busybox's that images have."""

_FORMAT = 1
"""Part of every key; raise it when a recipe below changes in a way its inputs don't show."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its full name and the archive to import."""

    name: str
    archive: Path


def pause(progress: Progress) -> Image:
    """What holds a pod's namespaces: one static binary that reaps."""
    binary = pause_binary(progress)

    def fill(layer: Layer) -> None:
        layer.file("pause", binary.read_bytes(), 0o755)

    return image_of("localhost/pause:1", [layer_of([binary], fill)], ImageConfig(("/pause",)))


def pause_binary(progress: Progress) -> Path:
    """The static reaper; it is also PID 1 of every node. Raises KybernateError."""
    source = HERE / "pause.c"
    target = cache_root() / "images" / f"pause-{_digest([source])}"
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


def servers(progress: Progress) -> Image:
    """nginx, Redis and Python of Debian."""
    from tests.cluster.fetched import servers as recipe  # noqa: PLC0415 - made of this

    return recipe.build(progress)


def llama(progress: Progress) -> Image:
    """llama.cpp's server of Debian."""
    from tests.cluster.fetched import llama as recipe  # noqa: PLC0415 - made of this

    return recipe.build(progress)


def node(progress: Progress) -> Image:
    """Node.js of Debian."""
    from tests.cluster.fetched import nodejs as recipe  # noqa: PLC0415 - made of this

    return recipe.build(progress)


BUILDERS: dict[str, Callable[[Progress], Image]] = {
    "pause": pause,
    "busybox": busybox,
    "toy": toy,
    "servers": servers,
    "llama": llama,
    "node": node,
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


def layer_of(inputs: Sequence[Path], fill: Callable[[Layer], None], *more: str) -> Blob:
    """A layer whose key is its inputs' content; filled only if it isn't there."""
    target = cache_root() / "images" / f"layer-{_digest(inputs, *more, fill.__qualname__)}.tar"
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            with _replacing(target) as part, tarfile.open(part, "w") as tar:
                fill(Layer(tar))
    return blob(target)


def image_of(name: str, layers: list[Blob], config: ImageConfig) -> Image:
    """An image of these layers, written only if it isn't there."""
    text = "".join(one.digest for one in layers) + repr(config) + name
    stem = name.rsplit("/", 1)[1].replace(":", "-")
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    target = cache_root() / "images" / f"{stem}-{key}.oci.tar"
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            write_archive(target, name, layers, config)
    return Image(name, target)


def _digest(files: Sequence[Path], *more: str) -> str:
    total = hashlib.sha256(f"{_FORMAT}|{'|'.join(more)}".encode())
    for file in files:
        total.update(f"{file.name}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    part = target.with_suffix(".part")
    yield part
    part.replace(target)


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
