"""The agent's journal and the Kubernetes API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping


class Journal(Protocol):
    """Records by key that survive the process, and the machine where `synced` is asked for."""

    @property
    def damage(self) -> str:
        """Once loaded: what could not be read of what was acknowledged, for people; "" if all was
        there. If not, the newest record of any key may be missing, or be an older one."""
        ...

    def load(self) -> Mapping[str, Mapping[str, object]]:
        """The last readable record of each key; what a crash cut off at the end was never written.
        Blocks; called once, before the first `put`. Raises RefusedError if it can't be used."""
        ...

    def put(
        self, key: str, record: Mapping[str, object], *, synced: bool, late: bool = False
    ) -> Awaitable[None]:
        """Records are written in the order of the calls; the call itself is quick and only
        queues. Once the answer is awaited it is written, so that the next agent of this boot reads
        it, and with `synced` it and all before it are on the disk. The answer raises OSError if
        the disk refuses. `late`: it may be written a moment later, with the next one that isn't, or
        as soon as somebody awaits it."""
        ...

    def delete(self, key: str) -> Awaitable[None]:
        """Forget the key; idempotent, queued like `put`."""
        ...

    def close(self) -> None:
        """Finish writing and close the file."""
        ...


class KubeApi(Protocol):
    """The API server; calls block up to `timeout`. Errors by the next step, see `errors`."""

    def get(
        self, path: str, params: Mapping[str, str] | None = None, *, timeout: float = 10.0
    ) -> Any:
        """Read an object or list."""
        ...

    def post(self, path: str, body: object, *, timeout: float = 10.0) -> Any:
        """Create."""
        ...

    def patch(
        self,
        path: str,
        body: object,
        kind: str = "merge",
        params: Mapping[str, str] | None = None,
        *,
        timeout: float = 10.0,
    ) -> Any:
        """Change; `kind` is merge, strategic, json or apply."""
        ...
