"""Ports to what a box hasn't got: containers, a kubelet, images, Kubernetes events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kybernate.ports import Holder, ImageCommand, SeatSpec
    from kybernate.types import PodRef, PodUid

log = logging.getLogger(__name__)


class NoContainers:
    """Implements `ports.Specs`, `ports.PodResources` and `ports.Images`: a model's process has all
    of the box, and CUDA_VISIBLE_DEVICES tells it which GPUs are its own."""

    def write(self, device_id: str, spec: SeatSpec) -> str:
        """See `ports.Specs`."""
        return ""

    def remove(self, device_id: str) -> None:
        """See `ports.Specs`."""

    def release(self, device_id: str, init: int, is_there: Callable[[], bool]) -> None:
        """See `ports.Specs`."""

    def ids(self) -> frozenset[str]:
        """See `ports.Specs`."""
        return frozenset()

    async def holder(self, resource: str, device_ids: Sequence[str]) -> Holder:
        """See `ports.PodResources`."""
        raise NotFoundError("no kubelet gives out devices of this box")

    async def held(self) -> Mapping[str, Holder]:
        """See `ports.PodResources`."""
        return {}

    async def command_of(self, image: str) -> ImageCommand:
        """See `ports.Images`."""
        raise NotFoundError("a model of this box is a command, and no image")

    async def digest_of(self, uid: PodUid, container: str) -> str:
        """See `ports.Images`."""
        raise NotFoundError("a model of this box is a command, and no image")


class NoEvents:
    """Implements the guard's `Announcer`: people read it in the log."""

    def told_node(self, kind: str, reason: str, sentence: str) -> None:
        """See `guard.announce`."""
        log.warning("%s", sentence)

    def told_pod(self, pod: PodRef, kind: str, reason: str, sentence: str) -> None:
        """See `guard.announce`."""
        log.warning("%s: %s", pod, sentence)
