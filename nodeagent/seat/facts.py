"""What a seat and its container are: for the manifest of its state, and against another's."""

from __future__ import annotations

import asyncio
import platform
from typing import TYPE_CHECKING

from kybernate.adapters.kernel.treefacts import (
    highest_pid,
    kyb_init_of,
    number_inside,
    privileges_of,
)
from kybernate.core.artifacts.grants import no_grants
from kybernate.core.artifacts.into import Container, Into
from kybernate.core.artifacts.match import UNKNOWN, Target
from kybernate.errors import NotFoundError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.artifacts.grants import Grant
    from kybernate.ports import Freezer, Images
    from kybernate.settings.agent import AgentSettings
    from kybernate.types import PodUid
    from nodeagent.seat.node import Inventory
    from nodeagent.seat.parts.tree import Process
    from nodeagent.seat.record import Seat

_MOST_DIGESTS = 1024


class Facts:
    """Implements `Offloading.facts` by a call, and `Offloading.into`. `criu` is the version of
    ours; `files_missing` says by process 1 why its container's files didn't travel. `grants` are
    those of other namespaces; it may raise RetryableError."""

    def __init__(  # noqa: PLR0913 - all but the last are required
        self,
        settings: AgentSettings,
        freezer: Freezer,
        inventory: Callable[[], Inventory | None],
        images: Images,
        criu: str,
        files_missing: Callable[[int], str],
        *,
        grants: Callable[[], tuple[Grant, ...]] = no_grants,
    ) -> None:
        self._settings = settings
        self._freezer = freezer
        self._inventory = inventory
        self._images = images
        self._criu = criu
        self._files_missing = files_missing
        self._grants = grants
        self._digests: dict[PodUid, tuple[Process | None, str]] = {}

    async def __call__(self, seat: Seat) -> Mapping[str, object]:
        """See `Offloading.facts`."""
        pids = self._freezer.pids(seat.tree.handle)
        if seat.tree.init is None or seat.tree.root is None or not pids:
            raise NotFoundError("its tree is gone")
        digest = await self._told_digest(seat)
        return await asyncio.to_thread(
            self._gather, seat, digest, pids, (seat.tree.init.pid, seat.tree.root.pid)
        )

    async def into(self, seat: Seat) -> Into:
        """Of its own state the machine alone is looked at: no runtime that is away holds it up."""
        pod, wants = seat.identity.pod, seat.awaits_state
        if seat.tree.init is None:
            raise NotFoundError("its container has ended")
        digest = await self._sure_digest(seat) if wants or seat.saved.borrowed else UNKNOWN
        there = await asyncio.to_thread(self._container, seat, digest, seat.tree.init.pid)
        of = seat.identity.namespace_uid
        return Into(pod.namespace, pod.uid, there, parked=not wants, namespace_uid=of)

    async def _sure_digest(self, seat: Seat) -> str:
        """A runtime that is just back may not know of a container that runs all along."""
        try:
            return await self._digest(seat)
        except NotFoundError as error:
            raise RetryableError(str(error)) from error

    async def _told_digest(self, seat: Seat) -> str:
        """Without it, the state can continue in its own pod all the same."""
        try:
            return await self._digest(seat)
        except (NotFoundError, RetryableError):
            return UNKNOWN

    async def _digest(self, seat: Seat) -> str:
        """Asked once for each container: it never changes its image, and parks wait for this."""
        known = self._digests.get(seat.uid)
        if known is not None and known[0] == seat.tree.init:
            return known[1]
        found = await self._images.digest_of(seat.uid, seat.identity.container)
        if len(self._digests) >= _MOST_DIGESTS:
            self._digests.clear()
        self._digests[seat.uid] = seat.tree.init, found
        return found

    def _gather(
        self, seat: Seat, digest: str, pids: tuple[int, ...], ours: tuple[int, int]
    ) -> Mapping[str, object]:
        one = seat.identity
        # Until it is woken there, its GPU memory is that of the GPUs that it came from.
        gpus = tuple(seat.tree.gpu_map) or one.gpus
        return {
            "namespace": one.pod.namespace,
            "namespace_uid": one.namespace_uid,
            "pod": one.pod.name,
            "pod_uid": one.pod.uid,
            "container": one.container,
            "image_digest": digest,
            "spec_hash": seat.wishes.spec_hash or UNKNOWN,
            "kernel": platform.release(),
            "criu": self._criu,
            "architecture": platform.machine(),
            "highest_pid": highest_pid(pids),
            "privileges": privileges_of(pids),
            **self._gpus(seat),
            "model": one.model,
            "kyb_init": self._kyb_init(ours[0]),
            "root_pid": number_inside(ours[1]),
            "gpu_pids": seat.tree.inner,
            "gpus": gpus,
            "files_missing": self._files_missing(ours[0]),
            "held": tuple(seat.tree.held.get(gpu, 0) for gpu in one.gpus),
            "first": seat.saved.first,
        }

    def _container(self, seat: Seat, digest: str, init: int) -> Container:
        gpus = self._gpus(seat)
        target = Target(
            image_digest=digest,
            spec_hash=seat.wishes.spec_hash or UNKNOWN,
            kernel=platform.release(),
            criu=self._criu,
            architecture=platform.machine(),
            gpu_product=str(gpus["gpu_product"]),
            gpu_count=len(seat.identity.gpus),
            driver=str(gpus["driver"]),
            cuda=str(gpus["cuda"]),
            kyb_init=self._kyb_init(init),
        )
        return Container(target, privileges_of((init,)), self._grants)

    def _gpus(self, seat: Seat) -> Mapping[str, object]:
        inventory, gpus = self._inventory(), seat.identity.gpus
        gpu = inventory.gpu(gpus[0]) if inventory and gpus else None
        return {
            "gpu_product": gpu.product if gpu else "",
            "gpu_count": len(gpus),
            "driver": inventory.driver_version if inventory else "",
            "cuda": inventory.cuda_version if inventory else "",
        }

    def _kyb_init(self, init: int) -> str:
        return kyb_init_of(init, self._settings.state_dir / "bin")
