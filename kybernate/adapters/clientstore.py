"""Where the records of the proxy's clients lie: a Secret, or a folder of files.

The Secret is mounted into the proxy as such a folder: the proxy itself reads no Secret by the API.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any, Protocol

from kybernate import keys
from kybernate.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 64 * 1024


class Store(Protocol):
    """Records by name, as texts."""

    def read(self) -> dict[str, str]:
        """All of them. Raises OSError or a KybernateError if they can't be read."""

    def write(self, name: str, text: str | None) -> None:
        """Put one there, in place of what has the name; None takes it away."""


class Api(Protocol):
    """What is needed of an API server; errors as `kybernate.adapters.k8s` raises them."""

    def get(self, path: str) -> dict[str, Any]:
        """Read an object."""

    def post(self, path: str, body: object) -> dict[str, Any]:
        """Create an object."""

    def patch(self, path: str, body: object) -> dict[str, Any]:
        """Change an object by a merge patch."""


class Folder:
    """One file a client. Names that begin with a point are the kubelet's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[str, str]:
        """All records; a folder that doesn't exist has none."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if name[0] != ".")
        except FileNotFoundError:
            return {}
        return {name: self._text(name) for name in names}

    def write(self, name: str, text: str | None) -> None:
        """Replace the file as a whole, or remove it."""
        target = self._folder / name
        if text is None:
            target.unlink(missing_ok=True)
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{name}.new"
        draft.write_text(text)
        draft.chmod(0o600)
        draft.rename(target)

    def _text(self, name: str) -> str:
        with (self._folder / name).open(errors="replace") as file:
            return file.read(_LARGEST)


class Secret:
    """The Secret `kyb-proxy-clients`, with one entry a client."""

    def __init__(self, api: Api, namespace: str = keys.NAMESPACE) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/secrets"
        self._version: str | None = None

    def read(self) -> dict[str, str]:
        """All records; a Secret that doesn't exist has none."""
        try:
            found = self._api.get(f"{self._path}/{keys.PROXY_CLIENTS}")
        except NotFoundError:
            self._version = None
            return {}
        self._version = str(found["metadata"]["resourceVersion"])
        return {
            name: base64.b64decode(value).decode(errors="replace")
            for name, value in (found.get("data") or {}).items()
        }

    def write(self, name: str, text: str | None) -> None:
        """Raises ConflictError if the Secret changed since `read`."""
        value = None if text is None else base64.b64encode(text.encode()).decode()
        metadata: dict[str, Any] = {"name": keys.PROXY_CLIENTS}
        try:
            if self._version is None:
                if text is None:
                    return
                body = {"metadata": metadata, "type": "Opaque", "data": {name: value}}
                made = self._api.post(self._path, body)
            else:
                metadata["resourceVersion"] = self._version
                path = f"{self._path}/{keys.PROXY_CLIENTS}"
                made = self._api.patch(path, {"metadata": metadata, "data": {name: value}})
        except ConflictError as error:
            reason = f"the Secret {keys.PROXY_CLIENTS} was changed by somebody else: try again"
            raise ConflictError(reason) from error
        self._version = str(made["metadata"]["resourceVersion"])
