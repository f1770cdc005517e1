"""What machines have in common: an object store, and a registry of who goes on with whose state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.core.artifacts import succession
from kybernate.core.artifacts.succession import Asked, PodRecord
from kybernate.errors import ConflictError, DeadlineError, NotFoundError
from kybernate.ports import DumpState, Line
from kybernate.types import ArtifactId, PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.testing.machine.saved import Keeping, Snapshot
    from kybernate.testing.machine.world import Machine

_Copy = tuple[str, Tier]


@dataclass(slots=True)
class Elsewhere:
    """All of it, by the nodes' names. `objects` are in the object store. A line is a workload and
    all that goes on from its state: `ran` counts by line how often its tree was thawed, wherever;
    `lines` are the lines of trees, as (node, handle); `successors` are the pods that go on with the
    line of another one: what any other goes on from is a copy, which begins a line of its own.
    `forgives`: nodes lost records, so that an older state may be had.

    `pods` and `copies` are the registry's: claims, and the places that have verified states.
    """

    machines: dict[str, Machine] = field(default_factory=dict)
    objects: dict[ArtifactId, Keeping] = field(default_factory=dict)
    ran: dict[str, int] = field(default_factory=dict)
    lines: dict[tuple[str, str], str] = field(default_factory=dict)
    successors: set[PodUid] = field(default_factory=set)
    forgives: bool = False
    pods: dict[tuple[str, str], PodRecord] = field(default_factory=dict)
    copies: dict[ArtifactId, dict[_Copy, bool]] = field(default_factory=dict)
    of: dict[ArtifactId, tuple[str, str]] = field(default_factory=dict)

    def line(self, node: str, handle: str) -> str:
        """The line of a tree."""
        return self.lines.setdefault((node, handle), f"{node}{handle}")

    def running(self, line: str) -> list[tuple[str, str]]:
        """Trees of the line with processes that stand nowhere still."""
        return [
            (node, handle)
            for (node, handle), name in self.lines.items()
            if name == line and self._runs(self.machines[node], handle)
        ]

    @staticmethod
    def _runs(machine: Machine, handle: str) -> bool:
        if handle in machine.frozen:
            return False
        return any(p.alive and p.handle == handle for p in machine.procs.values())

    def thawed(self, node: str, handle: str, ran: int, *, heard: bool) -> None:
        """A tree is about to run on, for the time number `ran`: see that it is the only one of its
        line, and begins where the last of them ended. `heard`: whether TCP passes; else nobody is
        answered, and what it does until it is killed or written down may be lost."""
        line, machine = self.line(node, handle), self.machines[node]
        for other in self.running(line):
            if other != (node, handle):
                machine.breach(f"{handle} on {node} runs beside {other[1]} on {other[0]}")
        if ran <= self.ran.get(line, 0) and not self.forgives:
            machine.breach(f"{handle} on {node} goes back in time: {ran} after {self.ran[line]}")
        if heard:
            self.ran[line] = max(ran, self.ran.get(line, 0))

    def continued(self, node: str, handle: str, uid: PodUid, line: str) -> None:
        """A tree was recreated of a state of this line."""
        if uid in self.successors:
            self.lines[node, handle] = line

    def awaited(self, uid: PodUid, ran: int, line: str) -> bool:
        """Whether somebody has nothing but this state to go on from: the newest of its line, of
        which no tree is left, and its successor waits."""
        if ran < self.ran.get(line, 0) or self.stands(line, ran):
            return False
        successors = {pod.successor for pod in self.pods.values() if pod.uid == uid}
        return any(self._waits(PodUid(name)) for name in successors if name)

    def stands(self, line: str, ran: int) -> bool:
        """Whether a tree of the line, with what it had become by run number `ran`, is alive
        somewhere: running, or parked in RAM."""
        return any(
            any(p.alive and p.handle == handle for p in machine.procs.values())
            for (node, handle), name in self.lines.items()
            if name == line and (machine := self.machines[node]).ran.get(handle, 0) >= ran
        )

    def _waits(self, uid: PodUid) -> bool:
        for machine in self.machines.values():
            init = machine.inits.get(uid, 0)
            if machine.dumps.get(init) is DumpState.PARKED and machine.procs[init].alive:
                return not machine.given_up(uid)
        return False

    def others(self, artifact: ArtifactId, snapshot: Snapshot, node: str, place: Tier) -> bool:
        """Whether what this artifact keeps in this place is kept besides: by another one, also of
        a successor that has not run since, on another node, or in the object store."""
        return any(
            one.snapshot.line == snapshot.line
            and one.snapshot.ran == snapshot.ran
            and (
                name != artifact
                or (where == "" and place is not Tier.OBJECT)
                or (where not in ("", node) and Tier.NVME in one.places)
            )
            for where, name, one in self._all()
        )

    def _all(self) -> Iterator[tuple[str, ArtifactId, Keeping]]:
        for node, machine in self.machines.items():
            yield from ((node, name, one) for name, one in machine.vault.items())
        yield from (("", name, one) for name, one in self.objects.items())

    def forget_object(self, artifact: ArtifactId) -> None:
        """It is in the object store no more."""
        self.objects.pop(artifact, None)
        for machine in self.machines.values():
            keeping = machine.vault.get(artifact)
            if keeping is not None:
                keeping.places.discard(Tier.OBJECT)
                if not keeping.places:
                    del machine.vault[artifact]


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

    async def record(self, manifest: Manifest, tier: Tier, token: int, deadline: float) -> None:
        """Noted, if the token counts."""
        await self._asked(deadline)
        facts = manifest.facts
        succession.check(self._get(facts.namespace, facts.pod_uid), self._node, token)
        self._note(manifest, tier, verified=True)
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

    def _at(self, tier: Tier) -> _Copy:
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
