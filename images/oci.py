"""OCI image archives without a docker daemon: layers as tar files, one archive to import."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of an archive."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What a container of the image runs unless its pod says otherwise."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ("PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",)
    workdir: str = "/"
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Layer:
    """The content of one layer, added piece by piece; owners are root and times are zero."""

    tar: tarfile.TarFile
    _made: set[str] = field(default_factory=set)

    def folder(self, name: str, mode: int = 0o755) -> None:
        """A folder and its parents."""
        name = name.strip("/")
        if not name or name in self._made:
            return
        self.folder(os.path.dirname(name))
        self._made.add(name)
        self._add(name, tarfile.DIRTYPE, mode)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """A file with this content."""
        self.folder(os.path.dirname(name))
        self._add(name.strip("/"), tarfile.REGTYPE, mode, io.BytesIO(data), len(data))

    def link(self, name: str, target: str) -> None:
        """A symbolic link."""
        self.folder(os.path.dirname(name))
        info = _info(name.strip("/"), tarfile.SYMTYPE, 0o777)
        info.linkname = target
        self.tar.addfile(info)

    def tree(self, root: Path, prefix: str = "", *, bytecode: bool = False) -> None:
        """Everything below `root`, in a fixed order; compiled modules only with `bytecode`."""
        for path in sorted(root.rglob("*")):
            name = f"{prefix}/{path.relative_to(root)}".strip("/")
            if "__pycache__" in name and not bytecode:
                continue
            mode = stat.S_IMODE(path.lstat().st_mode)
            if path.is_symlink():
                self.link(name, os.readlink(path))
            elif path.is_dir():
                self.folder(name, mode)
            elif path.is_file():
                with path.open("rb") as file:
                    self._add(name, tarfile.REGTYPE, mode, file, path.stat().st_size)

    def _add(self, name: str, kind: bytes, mode: int, file: Any = None, size: int = 0) -> None:
        info = _info(name, kind, mode)
        info.size = size
        self.tar.addfile(info, file)


def blob(path: Path) -> Blob:
    """A file with its digest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Blob(path, f"sha256:{digest}", path.stat().st_size)


def write_archive(
    out: Path,
    name: str,
    layers: list[Blob],
    config: ImageConfig,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """Writes an OCI archive that `ctr images import` takes. `name` is the full image name, and
    `annotations` are the manifest's."""
    part = out.with_suffix(".part")
    image = _image(layers, config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _describe(_CONFIG, image),
        "layers": [{"mediaType": _LAYER, "digest": one.digest, "size": one.size} for one in layers],
        **({"annotations": dict(annotations)} if annotations else {}),
    }
    text = json.dumps(manifest).encode()
    names = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [{**_describe(_MANIFEST, text), "annotations": names}],
    }
    with tarfile.open(part, "w") as tar:
        archive = Layer(tar)
        archive.file("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        archive.file("index.json", json.dumps(index).encode())
        for data in (image, text):
            archive.file(_blob_name(f"sha256:{hashlib.sha256(data).hexdigest()}"), data)
        for one in {layer.digest: layer for layer in layers}.values():
            info = _info(_blob_name(one.digest), tarfile.REGTYPE, 0o644)
            info.size = one.size
            with one.path.open("rb") as file:
                tar.addfile(info, file)
    part.replace(out)


def _image(layers: list[Blob], config: ImageConfig) -> bytes:
    settings = {
        "Entrypoint": list(config.entrypoint) or None,
        "Cmd": list(config.command) or None,
        "Env": list(config.env),
        "WorkingDir": config.workdir,
        "User": config.user,
        "Labels": dict(config.labels),
    }
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": {key: value for key, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [one.digest for one in layers]},
    }
    return json.dumps(image).encode()


def _describe(media_type: str, data: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _blob_name(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _info(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = mode
    return info
