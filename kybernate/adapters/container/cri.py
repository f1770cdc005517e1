"""The container runtime's word on images and pods, through the Container Runtime Interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import orjson

from kybernate.errors import NotFoundError, RetryableError
from kybernate.ports import ImageCommand
from kybernate.types import PodUid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DEADLINE = 2.0
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class CriImages:
    """Implements `kybernate.ports.Images` on the runtime's socket (containerd, CRI-O).

    Calls must come from one event loop. All raise RetryableError without an answer.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel: grpc.aio.Channel | None = None

    async def command_of(self, image: str) -> ImageCommand:
        """ENTRYPOINT and CMD of an image, as a container's spec or status names it.

        Raises NotFoundError if the runtime hasn't got it.
        """

        def asked(pb: Any) -> Any:
            return pb.ImageStatusRequest(image=pb.ImageSpec(image=image), verbose=True)

        answer = await self._ask("ImageService", "ImageStatus", asked)
        if not answer.HasField("image"):
            raise NotFoundError(f"The container runtime has no image {image}.")
        return command_from_info(image, answer.info.get("info", ""))

    async def digest_of(self, uid: PodUid, container: str) -> str:
        """The digest of the image that this container of a pod runs, alike on every node.

        Raises NotFoundError if it doesn't run.
        """
        labels = {"io.kubernetes.pod.uid": uid, "io.kubernetes.container.name": container}

        def asked(pb: Any) -> Any:
            runs = pb.ContainerStateValue(state=pb.CONTAINER_RUNNING)
            return pb.ListContainersRequest(
                filter=pb.ContainerFilter(state=runs, label_selector=labels)
            )

        answer = await self._ask("RuntimeService", "ListContainers", asked)
        found = {str(one.image_ref) for one in answer.containers}
        if len(found) != 1:
            raise NotFoundError(f"The container runtime has no one container {container} of {uid}.")
        return found.pop()

    async def sandboxes(self, namespace: str, name: str) -> frozenset[PodUid]:
        """UIDs of the pods of this name whose sandbox is ready."""
        labels = {"io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.name": name}

        def asked(pb: Any) -> Any:
            ready = pb.PodSandboxStateValue(state=pb.SANDBOX_READY)
            return pb.ListPodSandboxRequest(
                filter=pb.PodSandboxFilter(state=ready, label_selector=labels)
            )

        answer = await self._ask("RuntimeService", "ListPodSandbox", asked)
        return frozenset(PodUid(one.metadata.uid) for one in answer.items)

    async def version(self) -> str:
        """The runtime's name and version, such as "containerd 2.1.9"."""
        answer = await self._ask("RuntimeService", "Version", lambda pb: pb.VersionRequest())
        return f"{answer.runtime_name} {answer.runtime_version}"

    async def cdi(self) -> tuple[bool, tuple[str, ...]] | None:
        """Whether the runtime injects CDI devices, and the folders where it looks for them.

        None if it doesn't say, as CRI-O doesn't, where CDI is always on.
        """
        answer = await self._ask(
            "RuntimeService", "Status", lambda pb: pb.StatusRequest(verbose=True)
        )
        return cdi_from_config(answer.info.get("config", ""))

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def _ask(self, service: str, method: str, make: Callable[[Any], Any]) -> Any:
        """The answer to the message that `make` makes."""
        from kybernate.gen import cri_pb2  # noqa: PLC0415 - slow: not at a start
        from kybernate.lib import rpc  # noqa: PLC0415 - slow: not at a start

        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
        call = getattr(rpc.Stub(self._channel, cri_pb2.DESCRIPTOR, service), method)
        try:
            return await call(make(cri_pb2), timeout=_DEADLINE, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise RetryableError(
                f"The container runtime at {self._socket} gave no answer: "
                f"{error.code().name} {error.details()}"
            ) from error


def command_from_info(image: str, info: str) -> ImageCommand:
    """ENTRYPOINT and CMD in the runtime's verbose JSON, where the image's OCI config lies.

    Raises RetryableError if this runtime doesn't give it.
    """
    try:
        config: Any = orjson.loads(info)["imageSpec"]["config"]
        return ImageCommand(
            entrypoint=tuple(map(str, config.get("Entrypoint") or ())),
            cmd=tuple(map(str, config.get("Cmd") or ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RetryableError(
            f"The container runtime tells nothing of the command of image {image}; name the "
            "command in the pod."
        ) from error


def cdi_from_config(config: str) -> tuple[bool, tuple[str, ...]] | None:
    """What containerd's verbose JSON says of CDI, or None if there is nothing of it in there."""
    try:
        found: Any = orjson.loads(config)
        return bool(found["enableCDI"]), tuple(map(str, found.get("cdiSpecDirs") or ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
