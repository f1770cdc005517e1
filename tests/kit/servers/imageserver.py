"""A registry of images that can only be read, on 127.0.0.1: from it nodes pull like from any."""

from __future__ import annotations

import json
import shutil
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_BLOB = "application/octet-stream"
_TIMEOUT = 60.0


class ImageServer(ThreadingHTTPServer):
    """Serves the one image of an OCI archive under any name and tag, and by its digest.

    Raises KybernateError if the archive isn't one.
    """

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._sizes, self._manifest, self._kind = _blobs(archive)
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def host(self) -> str:
        """With what names of its images begin."""
        return f"127.0.0.1:{self.server_port}"

    def answer(self, to: BaseHTTPRequestHandler, *, body: bool) -> None:
        """Answer a request for a manifest or a blob."""
        folder, _, last = to.path.rpartition("/")
        digest = last if last.startswith("sha256:") else self._manifest
        if digest not in self._sizes or not folder.endswith(("/manifests", "/blobs")):
            to.send_error(404)
            return
        to.send_response(200)
        to.send_header("Content-Type", self._kind if digest == self._manifest else _BLOB)
        to.send_header("Content-Length", str(self._sizes[digest]))
        to.send_header("Docker-Content-Digest", digest)
        to.end_headers()
        if body:
            with tarfile.open(self._archive) as tar:
                data = tar.extractfile("blobs/" + digest.replace(":", "/"))
                shutil.copyfileobj(_there(data, self._archive), to.wfile)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Who asks by TLS is answered with a status line: then containerd asks again, without.
    default_request_version = "HTTP/1.1"
    timeout = _TIMEOUT  # type: ignore[mutable-override]
    server: ImageServer  # type: ignore[mutable-override]

    def do_HEAD(self) -> None:
        self.server.answer(self, body=False)

    def do_GET(self) -> None:
        self.server.answer(self, body=True)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def _blobs(archive: Path) -> tuple[dict[str, int], str, str]:
    """The size of each blob by its digest, and the digest and the type of the manifest."""
    with tarfile.open(archive) as tar:
        (manifest,) = json.load(_there(tar.extractfile("index.json"), archive))["manifests"]
        sizes = {
            one.name.removeprefix("blobs/").replace("/", ":"): one.size
            for one in tar.getmembers()
            if one.isfile() and one.name.startswith("blobs/")
        }
    return sizes, manifest["digest"], manifest["mediaType"]


def _there(file: Any, archive: Path) -> Any:
    if file is None:
        raise KybernateError(f"{archive} is no OCI archive of plain files; build the image again")
    return file
