"""A vault that has the registry told of all that happens in it, so that no caller can forget it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.errors import KybernateError, LeaveError
from kybernate.types import PodUid, Tier
from nodeagent.artifacts.reports import Kind, Report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from kybernate.core.artifacts.into import Into
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.ports import Sealed, Vault
    from kybernate.types import ArtifactId
    from nodeagent.artifacts.reports import ReportQueue


class ReportingVault:
    """Implements `ports.Vault` by another."""

    def __init__(self, vault: Vault, reports: ReportQueue) -> None:
        self._vault = vault
        self._reports = reports

    async def begin(self, uid: PodUid) -> Path:
        """As the vault's."""
        return await self._vault.begin(uid)

    async def abandon(self, uid: PodUid) -> None:
        """As the vault's."""
        await self._vault.abandon(uid)

    async def lent(self, uid: PodUid) -> str:
        """As the vault's."""
        return await self._vault.lent(uid)

    async def begun(self) -> tuple[PodUid, ...]:
        """As the vault's."""
        return await self._vault.begun()

    async def seal(self, images: Path, facts: Mapping[str, object], deadline: float) -> ArtifactId:
        """As the vault's, and told."""
        artifact = await self._vault.seal(images, facts, deadline)
        self._tell(Kind.SEALED, artifact, Tier.NVME)
        return artifact

    async def manifest(self, artifact: ArtifactId, deadline: float) -> Manifest:
        """As the vault's."""
        return await self._vault.manifest(artifact, deadline)

    async def admit(self, artifact: ArtifactId, into: Into, deadline: float) -> Manifest:
        """As the vault's."""
        return await self._held(into, lambda: self._vault.admit(artifact, into, deadline))

    async def images(self, artifact: ArtifactId, deadline: float, into: Into) -> Path:
        """As the vault's."""
        return await self._vault.images(artifact, deadline, into)

    async def lend(self, artifact: ArtifactId, uid: PodUid, deadline: float, into: Into) -> Path:
        """As the vault's."""
        return await self._vault.lend(artifact, uid, deadline, into)

    async def fill(self, artifact: ArtifactId, uid: PodUid, deadline: float) -> None:
        """As the vault's."""
        await self._vault.fill(artifact, uid, deadline)

    async def pack(
        self,
        artifact: ArtifactId,
        place: Tier,
        deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """As the vault's, and told before and after."""
        self._tell(Kind.COPYING, artifact, place)
        try:
            await self._vault.pack(artifact, place, deadline, progress)
        except LeaveError:
            facts = (await self._vault.manifest(artifact, deadline)).facts
            await self._reports.hold(facts.namespace, PodUid(facts.pod_uid))
            await self._vault.pack(artifact, place, deadline, progress)
        self._tell(Kind.COPIED, artifact, place)

    async def fetch(
        self,
        artifact: ArtifactId,
        images: Path,
        deadline: float,
        into: Into,
        progress: Callable[[int], None] | None = None,
        laid_out: Callable[[], None] | None = None,
    ) -> Manifest:
        """As the vault's: a folder of images is no copy."""
        return await self._held(
            into, lambda: self._vault.fetch(artifact, images, deadline, into, progress, laid_out)
        )

    async def verify(self, artifact: ArtifactId, place: Tier, deadline: float) -> None:
        """As the vault's."""
        await self._vault.verify(artifact, place, deadline)

    async def drop(self, artifact: ArtifactId, place: Tier, *, forget: str = "") -> None:
        """As the vault's, and told before; a copy that stays is told again, unless nobody needs
        it: then it goes later, and nobody may continue from it meanwhile."""
        self._tell(Kind.DROPPED, artifact, place, forget)
        try:
            await self._vault.drop(artifact, place, forget=forget)
        except (KybernateError, OSError):
            if not forget:
                self._tell(Kind.COPIED, artifact, place)
            raise

    async def ls(self, place: Tier) -> tuple[Sealed, ...]:
        """As the vault's."""
        return await self._vault.ls(place)

    async def _held(self, into: Into, call: Callable[[], Awaitable[Manifest]]) -> Manifest:
        """What lies in the object store is had for the sake of the pod that it goes to: where the
        registry doesn't know yet that this is here, it is told."""
        try:
            return await call()
        except LeaveError:
            await self._reports.hold(into.namespace, into.uid)
            return await call()

    def _tell(self, kind: Kind, artifact: ArtifactId, tier: Tier, why: str = "") -> None:
        self._reports.put(Report(kind, artifact=artifact, tier=tier.value, why=why))
