"""This node's GPUNode in Kubernetes: made if it is missing, and gone with the Node.

The Node owns it: the garbage collector takes it away when the Node is deleted, and the extender
believes none whose owner there isn't, so that a machine that left is never planned with, and one
that came back under the same name is not taken for the old one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from kybernate.ports import KubeApi

log = logging.getLogger(__name__)

CALL_TIMEOUT = 5.0
"""Seconds for one call to the API server."""

WRITE_LIMIT = 5 * CALL_TIMEOUT
"""Seconds for all calls of one write."""


class Record:
    """The GPUNode of the node `name`. Calls block; one at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._path = f"{keys.GPU_NODES_PATH}/{name}"
        self._owned = False

    def write(self, api: KubeApi, status: dict[str, Any]) -> None:
        """Write the status. Raises KybernateError: NotFoundError if there is no such Node."""
        try:
            if not self._owned:
                owner = {"ownerReferences": self._owner(api)}
                api.patch(self._path, {"metadata": owner}, timeout=CALL_TIMEOUT)
            self._write(api, status)
        except NotFoundError:
            self._owned = False
            self._make(api)
            self._write(api, status)
        self._owned = True

    def _write(self, api: KubeApi, status: dict[str, Any]) -> None:
        api.patch(f"{self._path}/status", {"status": status}, timeout=CALL_TIMEOUT)

    def _make(self, api: KubeApi) -> None:
        body = {
            "apiVersion": keys.API_VERSION,
            "kind": keys.GPU_NODE_KIND,
            "metadata": {"name": self._name, "ownerReferences": self._owner(api)},
        }
        api.post(keys.GPU_NODES_PATH, body, timeout=CALL_TIMEOUT)

    def _owner(self, api: KubeApi) -> list[dict[str, str]]:
        try:
            node = api.get(f"/api/v1/nodes/{self._name}", timeout=CALL_TIMEOUT)
        except RefusedError as error:
            log.warning("GPUNode %s is left without its Node as owner: %s", self._name, error)
            return []
        except NotFoundError as error:
            raise NotFoundError(f"the cluster has no Node {self._name}; {error}") from error
        uid = str(node["metadata"]["uid"])
        return [{"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": uid}]
