"""The kubelet's pod-resources API: which container holds which device.

It knows pods by name only; the UID comes from the API server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from kybernate import keys
from kybernate.errors import NotFoundError, RetryableError
from kybernate.ports import Holder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kybernate.gen import podresources_pb2

_DEADLINE = 2.0
_OPTIONS = (
    # The kubelet may be restarting: look again soon, not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", 64 << 20),
)


class KubeletPodResources:
    """Implements `kybernate.ports.PodResources` on the kubelet's socket.

    Calls must come from one event loop.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel: grpc.aio.Channel | None = None

    async def holder(self, resource: str, device_ids: Sequence[str]) -> Holder:
        """Who holds exactly these devices.

        Raises NotFoundError while the kubelet lists no one, RetryableError without an answer.
        """
        wanted = frozenset(device_ids)
        for name, ids, holder in _allocations(await self._list()):
            if name == resource and ids == wanted:
                return holder
        raise NotFoundError(
            f"The kubelet lists no container that holds {', '.join(sorted(wanted))} of {resource}."
        )

    async def held(self) -> Mapping[str, Holder]:
        """Every device ID of a seat resource that is held, and its holder."""
        return {
            device_id: holder
            for name, ids, holder in _allocations(await self._list())
            if keys.seat_resource_size(name) is not None
            for device_id in ids
        }

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def _list(self) -> podresources_pb2.ListPodResourcesResponse:
        from kybernate.gen import podresources_pb2  # noqa: PLC0415 - slow: not at a start
        from kybernate.lib import rpc  # noqa: PLC0415 - slow: not at a start

        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
        stub = rpc.Stub(self._channel, podresources_pb2.DESCRIPTOR, "PodResourcesLister")
        request = podresources_pb2.ListPodResourcesRequest()
        try:
            answer: podresources_pb2.ListPodResourcesResponse = await stub.List(
                request, timeout=_DEADLINE, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise RetryableError(
                f"The kubelet's pod-resources socket {self._socket} gave no answer: "
                f"{error.code().name} {error.details()}"
            ) from error
        return answer


def _allocations(
    answer: podresources_pb2.ListPodResourcesResponse,
) -> Iterator[tuple[str, frozenset[str], Holder]]:
    """(resource, all its device IDs in one container, that container)."""
    for pod in answer.pod_resources:
        for container in pod.containers:
            by_resource: dict[str, set[str]] = {}
            # The kubelet lists a resource once per NUMA node.
            for devices in container.devices:
                by_resource.setdefault(devices.resource_name, set()).update(devices.device_ids)
            holder = Holder(namespace=pod.namespace, pod=pod.name, container=container.name)
            for resource, ids in by_resource.items():
                yield resource, frozenset(ids), holder
