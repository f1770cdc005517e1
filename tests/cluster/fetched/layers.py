"""Layers and images in the cache, built only if what they are made of has changed."""

from __future__ import annotations

import hashlib
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from images import debs
from images.cache import file_lock
from images.oci import Blob, ImageConfig, Layer, blob, write_archive
from tests.cluster.layout import cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

BUSYBOX = debs.DebSet("busybox", "bookworm", (("busybox-static", "1:1.35.0-4+deb12u1+b1"),))
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


def layer_of(inputs: Sequence[Path], fill: Callable[[Layer], None], *more: str) -> Blob:
    """A layer whose key is its inputs' content; filled only if it isn't there."""
    target = cache_root() / "images" / f"layer-{key_of(inputs, *more, fill.__qualname__)}.tar"
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


def key_of(files: Sequence[Path], *more: str) -> str:
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
