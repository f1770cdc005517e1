"""An image of Node.js as Debian has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from images import debs
from images.oci import ImageConfig
from tests.cluster.fetched.layers import image_of, layer_of

if TYPE_CHECKING:
    from images.oci import Layer
    from tests.cluster.fetched.layers import Image
    from tests.cluster.layout import Progress

NAME = "localhost/node:1"
PACKAGES = debs.DebSet("stranger-node", "bookworm", (("nodejs", ""),), closure=True)
PROGRAM = "usr/bin/node"
LIBRARIES = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64")


def build(progress: Progress) -> Image:
    """The image, from the cache if its inputs are the same. Raises KybernateError."""
    root = debs.unpack(PACKAGES, progress).folder
    binaries = [*(one for name in LIBRARIES for one in (root / name).glob("*.so*"))]
    # Node's own modules, which Debian has outside its program.
    sources = (root / "usr/share/nodejs").rglob("*")
    files = sorted(one for one in (*binaries, *sources) if one.is_file())

    def fill(layer: Layer) -> None:
        for path in (root / PROGRAM, *files):
            place = path.relative_to(root)
            prefix = "" if place.parts[0] == "usr" else "usr/"
            layer.file(f"{prefix}{place}", path.read_bytes(), 0o755)
        for name in ("lib", "lib64"):
            layer.link(name, f"usr/{name}")
        for name in ("dev", "proc", "sys", "run", "root"):
            layer.folder(name)
        layer.folder("tmp", 0o1777)
        layer.file("etc/passwd", b"root:x:0:0:root:/:/bin/false\n")
        layer.file("etc/group", b"root:x:0:\n")

    layer = layer_of([root / PROGRAM, *files], fill, NAME)
    return image_of(NAME, [layer], ImageConfig(entrypoint=(f"/{PROGRAM}",)))
