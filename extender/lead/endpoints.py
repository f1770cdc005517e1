"""Leading the extender's Service to the replica that leads.

Standbys are ready, or a rollout would never end; so the Service has no selector, and the leader
writes its one endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.settings.common import host_port

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api

SERVICE = "kyb-extender"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{keys.NAMESPACE}/endpointslices"


class Endpoint:
    """This replica's address, as the only endpoint of the Service. `address` is host:port."""

    def __init__(self, api: Api, address: str, timeout: float) -> None:
        """A call takes at most `timeout` seconds."""
        self._api = api
        self._host, self._port = host_port(address)
        self._timeout = timeout

    def publish(self) -> None:
        """Write it, or write it again. Raises KybernateError."""
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": SERVICE,
                "labels": {
                    "kubernetes.io/service-name": SERVICE,
                    "endpointslice.kubernetes.io/managed-by": "kyb-extender",
                },
            },
            "addressType": "IPv6" if ":" in self._host else "IPv4",
            "endpoints": [{"addresses": [self._host], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": self._port, "protocol": "TCP"}],
        }
        self._api.patch(
            f"{SLICES}/{SERVICE}", body, "apply", {"force": True}, timeout=self._timeout
        )
