"""A store of objects that breaks its word, over HTTP: a relay in front of a real S3 server.

What it does wrong is set by the test, for all requests from then on:

    late        lists are those of before the last so many changes
    stale       GET and HEAD tell of objects as they were before the last so many changes
    forgets     so many of the next objects that are put are acknowledged, and not kept
    deaf        so many of the next changes are made, and their answers lost
    ahead       its clock is that many seconds ahead of this machine's

The relay knows every version that was put through it, and lists from memory; what the server has is
the truth.
"""

from __future__ import annotations

import hashlib
import http.client
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HOP = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})
_OK = 200


@dataclass(slots=True)
class Change:
    """One object put, or deleted (None)."""

    key: str
    data: bytes | None
    at: float


@dataclass(slots=True)
class Fickle:
    """The relay's faults and memory. `forgotten`: keys that were acknowledged and not kept;
    `ghosts`: what late lists tell of, and nothing else."""

    url: str
    environment: Mapping[str, str]
    late: int = 0
    stale: int = 0
    forgets: int = 0
    deaf: int = 0
    ahead: float = 0.0
    match: str = ""
    changes: list[Change] = field(default_factory=list)
    ghosts: dict[str, Change] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def heal(self) -> None:
        """From now on it keeps its word; what it has forgotten is gone."""
        with self.lock:
            self.late = self.stale = self.forgets = self.deaf = 0

    def forget(self, key: str) -> None:
        """The server has lost it: no version of it is left but in lists that are late."""
        with self.lock:
            mine = [one for one in self.changes if one.key == key and one.data is not None]
            self.changes = [one for one in self.changes if one.key != key]
            if mine:
                self.ghosts[key] = mine[-1]

    def now(self) -> float:
        """Seconds since 1970 by its clock."""
        return time.time() + self.ahead

    def before(self, back: int) -> dict[str, Change]:
        """The objects as they were before the last so many changes."""
        with self.lock:
            seen = self.changes[: max(0, len(self.changes) - back)]
        return {one.key: one for one in seen}

    def takes(self, fault: str, key: str) -> bool:
        """Whether this fault, which is counted, strikes now."""
        with self.lock:
            left = getattr(self, fault)
            if left and self.match in key:
                setattr(self, fault, left - 1)
                return True
        return False


@contextmanager
def relay(url: str, environment: Mapping[str, str]) -> Iterator[Fickle]:
    """In front of the server that these lead to (as `s3.Server` has them)."""
    upstream = urlsplit(environment["AWS_ENDPOINT"]).netloc
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    own = f"http://127.0.0.1:{server.server_address[1]}"
    server.fickle = Fickle(url, {**environment, "AWS_ENDPOINT": own})  # type: ignore[attr-defined]
    server.upstream = upstream  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.fickle  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Nothing is said."""

    def setup(self) -> None:
        super().setup()
        self.fickle: Fickle = self.server.fickle  # type: ignore[attr-defined]
        self._line = http.client.HTTPConnection(self.server.upstream)  # type: ignore[attr-defined]

    def finish(self) -> None:
        self._line.close()
        with suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        key = unquote(parts.path).lstrip("/")
        if "list-type" in parse_qs(parts.query):
            self._list(parse_qs(parts.query).get("prefix", [""])[0], key.strip("/"))
        elif self.fickle.stale:
            self._old(key)
        else:
            status, headers, body = self._forwarded(b"")
            if (known := self.fickle.before(0).get(key)) is not None:
                headers["Last-Modified"] = formatdate(known.at, usegmt=True)
            self._answer(status, headers, body)

    do_HEAD = do_GET  # noqa: N815 - the name that is looked for

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        key = unquote(urlsplit(self.path).path).lstrip("/")
        if self.fickle.takes("forgets", key):
            self.fickle.forgotten.add(key)
            tag = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}  # noqa: S324 - S3's own
            self._answer(_OK, tag, b"")
            return
        self._change(data, [Change(key, data, self.fickle.now())])

    def do_DELETE(self) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/")
        self._change(b"", [Change(key, None, self.fickle.now())])

    def do_POST(self) -> None:
        """Several are deleted."""
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        bucket = unquote(urlsplit(self.path).path).strip("/")
        said = ElementTree.fromstring(data)  # noqa: S314 - our own client's
        found = [one.text or "" for one in said.iter() if _is(one, "Key")]
        self._change(data, [Change(f"{bucket}/{key}", None, self.fickle.now()) for key in found])

    def _change(self, data: bytes, changes: list[Change]) -> None:
        status, headers, body = self._forwarded(data)
        if status < 300:
            with self.fickle.lock:
                self.fickle.changes += changes
                self.fickle.forgotten -= {one.key for one in changes}
        if self.fickle.takes("deaf", changes[0].key if changes else ""):
            self.close_connection = True
            return
        self._answer(status, headers, body)

    def _old(self, key: str) -> None:
        """The object as it was; conditions and ranges as S3 has them."""
        known = self.fickle.before(self.fickle.stale).get(key)
        if known is None or known.data is None:
            body = b"<Error><Code>NoSuchKey</Code></Error>"
            self._answer(404, {"Content-Type": "application/xml"}, body)
            return
        data, status, headers = (
            known.data,
            _OK,
            {"Last-Modified": formatdate(known.at, usegmt=True)},
        )
        headers["ETag"] = f'"{hashlib.md5(data).hexdigest()}"'  # noqa: S324 - S3's own
        if wanted := self.headers.get("range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            data, status = data[start : end + 1], 206
        self._answer(status, headers, data)

    def _list(self, prefix: str, bucket: str) -> None:
        fickle, found = self.fickle, ElementTree.Element("ListBucketResult")
        objects = fickle.before(fickle.late) | (fickle.ghosts if fickle.late else {})
        ElementTree.SubElement(found, "IsTruncated").text = "false"
        for name, known in sorted(objects.items()):
            key = name.removeprefix(f"{bucket}/")
            if known.data is not None and key.startswith(prefix):
                at = datetime.fromtimestamp(known.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
                said = {"Key": key, "Size": len(known.data), "LastModified": at, "ETag": '"0"'}
                one = ElementTree.SubElement(found, "Contents")
                for member, value in said.items():
                    ElementTree.SubElement(one, member).text = str(value)
        self._answer(_OK, {"Content-Type": "application/xml"}, ElementTree.tostring(found))

    def _forwarded(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {
            name: value for name, value in self.headers.items() if name.lower() != "connection"
        }
        for again in (True, False):
            try:
                self._line.request(self.command, self.path, data or None, headers)
                got = self._line.getresponse()
                return got.status, dict(got.getheaders()), got.read()
            except (OSError, http.client.HTTPException):
                self._line.close()
                if not again:
                    raise
        raise AssertionError

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        size = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", size or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is(element: ElementTree.Element, name: str) -> bool:
    return element.tag.rpartition("}")[2] == name
