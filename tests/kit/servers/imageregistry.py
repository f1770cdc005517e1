"""A registry of images on loopback where MicroK8s has its own, and skopeo, which pushes to it: both
Debian's, unpacked into the project's cache."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from images import debs
from images.cache import silent
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from images.cache import Progress

PACKAGES = debs.DebSet(
    "imageregistry",
    "bookworm",
    (
        ("docker-registry", "2.8.2+ds1-1"),
        ("skopeo", "1.9.3+ds1-1+b10"),
        ("libgpgme11", "1.18.0-3+deb12u1"),
        ("libassuan0", "2.5.5-5"),
        ("libgpg-error0", "1.46-1"),
        ("libdevmapper1.02.1", "2:1.02.185-2"),
    ),
)
HOST = "localhost:32000"
_LIBRARIES = "usr/lib/x86_64-linux-gnu:lib/x86_64-linux-gnu"
_KIND = "application/vnd.oci.image.manifest.v1+json"
_STARTS_S = 30.0


def ensure(progress: Progress = silent) -> Path:
    """Where both are unpacked. Raises KybernateError."""
    return debs.unpack(PACKAGES, progress).folder


def skopeo(folder: Path) -> None:
    """Put `skopeo` into a folder: it finds its libraries, and asks for no policy of the host."""
    root = ensure()
    paths = ":".join(str(root / one) for one in _LIBRARIES.split(":"))
    run = f'LD_LIBRARY_PATH={paths} exec {root}/usr/bin/skopeo --insecure-policy "$@"'
    (folder / "skopeo").write_text(f"#!/bin/sh\n{run}\n")
    (folder / "skopeo").chmod(0o755)


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """An empty registry at HOST, with its files in the folder. Raises KybernateError."""
    told = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {"addr": HOST},
    }
    (folder / "registry.yaml").write_text(yaml.safe_dump(told))
    argv = [str(ensure() / "usr/bin/docker-registry"), "serve", str(folder / "registry.yaml")]
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        _await(process, folder / "registry.log")
        yield
    finally:
        process.kill()
        process.wait()


def manifest(name: str, tag: str) -> dict[str, Any]:
    """That of an image in the registry. Raises KybernateError if it has none."""
    asked = urllib.request.Request(f"http://{HOST}/v2/{name}/manifests/{tag}")
    asked.add_header("Accept", _KIND)
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310 - http
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise KybernateError(f"{HOST} has no {name}:{tag}: {error}") from error
    return found


def _await(process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _STARTS_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{HOST}/v2/", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise KybernateError(f"the registry of images does not answer: {log.read_text()[-500:]}")
