"""An image of llama.cpp's server as Debian has it, with a tiny model in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from images import debs
from images.oci import ImageConfig
from tests.cluster.fetched import gguf
from tests.cluster.fetched.layers import BUSYBOX, image_of, layer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from images.oci import Layer
    from tests.cluster.fetched.layers import Image
    from tests.cluster.layout import Progress

NAME = "localhost/llama:1"
PACKAGES = debs.DebSet("llama", "forky", (("llama.cpp-tools", "1:0.7.0+dfsg-2"),), closure=True)
"""With all libraries, the C library too: bookworm's is too old for it."""

SERVER = "usr/bin/llama-server"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
FOLDERS = ("", "llama", "ggml/*")
"""Below LIBRARIES: what is linked, the server itself, and the code for each kind of processor."""

MODEL = "/model.gguf"
PORT = 8080
COMMAND = (
    *(f"/{SERVER}", "--model", MODEL, "--host", "0.0.0.0", "--port", str(PORT), "--no-webui"),
    *("--threads", "1", "--threads-batch", "1", "--parallel", "1", "--ctx-size", "512"),
)


def build(progress: Progress) -> Image:
    """The image, from the cache if its inputs are the same. Raises KybernateError."""
    root = debs.unpack(PACKAGES, progress).folder
    files = sorted(_files(root))
    busybox = debs.unpack(BUSYBOX, progress).folder / "bin" / "busybox"

    def fill(layer: Layer) -> None:
        for path in files:
            place = str(path.relative_to(root))
            if path.is_symlink():
                layer.link(place, str(path.readlink()))
            else:
                layer.file(place, path.read_bytes(), 0o755)
        layer.link("lib64", "usr/lib64")
        layer.file("bin/busybox", busybox.read_bytes(), 0o755)
        for name in ("dev", "proc", "sys", "run", "root"):
            layer.folder(name)
        layer.folder("tmp", 0o1777)
        layer.file("etc/passwd", b"root:x:0:0:root:/:/bin/false\n")
        layer.file("etc/group", b"root:x:0:\n")
        layer.file(MODEL, gguf.model())

    inputs = [*(path for path in files if not path.is_symlink()), busybox, Path(gguf.__file__)]
    layer = layer_of(inputs, fill, NAME)
    return image_of(NAME, [layer], ImageConfig(entrypoint=COMMAND))


def _files(root: Path) -> Iterator[Path]:
    yield root / SERVER
    yield root / "usr/lib64/ld-linux-x86-64.so.2"
    for folder in FOLDERS:
        yield from root.glob(f"{LIBRARIES}/{folder}/*.so*".replace("//", "/"))
