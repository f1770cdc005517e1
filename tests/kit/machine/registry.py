"""A registry of who may continue from whose state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.artifacts import succession
from kybernate.core.artifacts.succession import Asked, PodRecord
from kybernate.errors import ConflictError, DeadlineError, NotFoundError
from kybernate.ports import Line
from kybernate.types import ArtifactId, PodUid, Tier

if TYPE_CHECKING:
    from kybernate.core.artifacts.manifest import Manifest
    from tests.kit.machine.elsewhere import Copy, Elsewhere
    from tests.kit.machine.world import Machine


class FakeRegistry:
    """Implements `ports.Registry`, as one node sees it. Faults: registry-down, and
    registry-unheard (what was asked is done, and no answer comes); a node that is in the machine's
    `cut_off` has no answers at all."""

    def __init__(self, machine: Machine, elsewhere: Elsewhere) -> None:
        self._machine = machine
        self._elsewhere = elsewhere

    async def lease(self, namespace: str, uid: PodUid, seconds: float, deadline: float) -> int:
        """By the rules of succession."""
        await self._asked(deadline)
        now = self._now_ms()
        pod = self._put(succession.lease(self._get(namespace, uid), self._node, now + 1, now))
        await self._answered(deadline)
        return pod.token

    async def record(
        self,
        manifest: Manifest,
        tier: Tier,
        token: int,
        deadline: float,
        *,
        person_hold: bool = False,
    ) -> None:
        """Noted, if the token counts."""
        await self._asked(deadline)
        facts = manifest.facts
        succession.check(self._get(facts.namespace, facts.pod_uid), self._node, token)
        self._note(manifest, tier, verified=True)
        if person_hold:
            self._elsewhere.kept.add(ArtifactId(manifest.id))
        await self._answered(deadline)

    async def report(
        self, manifest: Manifest, tier: Tier, deadline: float, *, verified: bool = True
    ) -> None:
        """Noted."""
        await self._asked(deadline)
        self._note(manifest, tier, verified=verified)
        await self._answered(deadline)

    async def drop(
        self, artifact: ArtifactId, tier: Tier, deadline: float, *, forget: str = ""
    ) -> None:
        """No longer counted on, unless it is the last."""
        await self._asked(deadline)
        copies = self._elsewhere.copies.get(artifact, {})
        pod = self._get(*self._elsewhere.of.get(artifact, ("", "")))
        others = tier is Tier.OBJECT and not succession.is_own(pod, self._node)
        if others and artifact in self._elsewhere.kept:
            if forget:
                self._put(succession.let_go(pod, self._node, artifact))
            await self._answered(deadline)
            return
        rest = [copy for copy, verified in copies.items() if verified and copy != self._at(tier)]
        if copies.get(self._at(tier)) and not rest and not forget:
            raise ConflictError(f"{artifact} has no other verified copy")
        copies.pop(self._at(tier), None)
        await self._answered(deadline)

    async def stop(self, namespace: str, uid: PodUid, why: str, deadline: float) -> None:
        """By the rules of succession."""
        await self._asked(deadline)
        pod = self._get(namespace, uid)
        self._put(succession.stop(pod, succession.BY_AGENT, self._node, why))
        await self._answered(deadline)

    async def claim(
        self,
        namespace: str,
        uid: PodUid,
        artifact: ArtifactId,
        successor: PodUid,
        deadline: float,
        *,
        again: bool = False,
    ) -> None:
        """By the rules of succession, of what is known."""
        await self._asked(deadline)
        pod, after = self._get(namespace, uid), self._get(namespace, successor)
        asked = Asked(artifact, successor, self._node, again=again)
        claimed = succession.claim(pod, after, asked, self._now_ms())
        gone = successor != uid and not self._elsewhere.copies.get(artifact)
        if claimed != (pod, after):
            if gone:
                raise NotFoundError(f"artifact {artifact} is not known; record it first")
            succession.see_newest(pod, asked, self._newest(namespace, uid))
        for one in claimed:
            self._put(one)
        await self._answered(deadline)

    async def hand_back(
        self, namespace: str, uid: PodUid, successor: PodUid, deadline: float
    ) -> None:
        """By the rules of succession."""
        await self._asked(deadline)
        pod, after = self._get(namespace, uid), self._get(namespace, successor)
        for one in succession.release(pod, after, self._node):
            self._put(one)
        await self._answered(deadline)

    async def line(self, namespace: str, uid: PodUid, deadline: float) -> Line:
        """As it is."""
        await self._asked(deadline)
        one = self._get(namespace, uid)
        return Line(one.node, one.stopped, one.successor, one.artifact, one.ended, one.settled)

    async def newest(self, namespace: str, uid: PodUid, deadline: float) -> ArtifactId:
        """With a verified copy, wherever that is."""
        await self._asked(deadline)
        if not (newest := self._newest(namespace, uid)):
            raise NotFoundError(f"no state of pod {namespace}/{uid} is known")
        return ArtifactId(newest)

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _node(self) -> str:
        return self._machine.name

    def _at(self, tier: Tier) -> Copy:
        return ("" if tier is Tier.OBJECT else self._node, tier)

    def _note(self, manifest: Manifest, tier: Tier, *, verified: bool) -> None:
        facts, artifact = manifest.facts, ArtifactId(manifest.id)
        self._elsewhere.of[artifact] = (facts.namespace, facts.pod_uid)
        copies = self._elsewhere.copies.setdefault(artifact, {})
        copies[self._at(tier)] = verified or copies.get(self._at(tier), False)

    def _newest(self, namespace: str, uid: str) -> str:
        found = [one for one, pod in self._elsewhere.of.items() if pod == (namespace, uid)]
        there = [one for one in found if any(self._elsewhere.copies.get(one, {}).values())]
        return max(there, key=lambda one: one.rpartition("@")[2], default="")

    def _get(self, namespace: str, uid: str) -> PodRecord:
        return self._elsewhere.pods.get((namespace, uid)) or PodRecord(namespace, uid)

    def _put(self, pod: PodRecord) -> PodRecord:
        self._elsewhere.pods[pod.namespace, pod.uid] = pod
        return pod

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def _asked(self, deadline: float) -> None:
        await asyncio.sleep(self._machine.step())
        if self._machine.cut_off or self._machine.fault("registry-down"):
            await asyncio.sleep(deadline)
            raise DeadlineError("the registry does not answer")

    async def _answered(self, deadline: float) -> None:
        if self._machine.fault("registry-unheard"):
            await asyncio.sleep(deadline)
            raise DeadlineError("the registry did not answer in time")
        await asyncio.sleep(self._machine.step())
