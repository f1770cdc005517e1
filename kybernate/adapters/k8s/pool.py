"""The official client's connections to one API server, without what its general ways cost.

Its manager of pools looks at host and settings for each request again; and a request's head and
body are written one after the other, which is two TLS records to make, and for the API server to
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Pool:
    """Kept connections to the host of a URL. Safe to use from several threads."""

    def __init__(self, manager: Any, url: str) -> None:
        """`manager` is the client's urllib3.PoolManager."""
        from urllib3.util import parse_url  # noqa: PLC0415 - comes with the client

        self._manager = manager
        self._url = url.rstrip("/")
        self._prefix = (parse_url(self._url).path or "").rstrip("/")
        self._pool = self._made()

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> Any:
        """Send a request; its answer, not read yet. Raises urllib3's HTTPError, and OSError.

        `target` begins after the URL; `timeout` is in seconds, connecting included.
        """
        from urllib3 import Timeout  # noqa: PLC0415 - comes with the client

        return self._pool.urlopen(
            method,
            self._prefix + target,
            body=body,
            headers=headers,
            timeout=Timeout(total=timeout),
            retries=False,
            redirect=False,
            preload_content=False,
        )

    def clear(self) -> None:
        """Drop all idle connections."""
        # Calls that come meanwhile still find a pool that is open.
        self._manager.clear()
        before, self._pool = self._pool, self._made()
        before.close()

    def _made(self) -> Any:
        pool = self._manager.connection_from_url(self._url)
        pool.ConnectionCls = type("WholeConnection", (_Whole, pool.ConnectionCls), {})
        return pool


class _Whole:
    """A connection that writes each request at once."""

    _held: bytearray | None = None

    def request(self, *args: Any, **kwargs: Any) -> None:
        """As ever, but for when it is written."""
        held = self._held = bytearray()
        try:
            super().request(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._held = None
        self.send(held)

    def send(self, data: Any) -> None:
        """Called with each part, and for what is said before a request (to a proxy)."""
        if self._held is None:
            super().send(data)  # type: ignore[misc]
        else:
            self._held += data
