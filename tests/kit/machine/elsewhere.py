"""What machines have in common: an object store, and who continues from whose state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kybernate.ports import DumpState
from kybernate.types import PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.core.artifacts.succession import PodRecord
    from kybernate.types import ArtifactId
    from tests.kit.machine.processes import FakeProcess
    from tests.kit.machine.saved import Keeping, Snapshot

    Copy = tuple[str, Tier]


class Here(Protocol):
    """What a machine shows of itself to all."""

    procs: dict[int, FakeProcess]
    frozen: set[str]
    ran: dict[str, int]
    inits: dict[PodUid, int]
    dumps: dict[int, DumpState]
    vault: dict[ArtifactId, Keeping]

    def breach(self, what: str) -> None:
        """Something happened that must never happen."""

    def given_up(self, uid: PodUid) -> bool:
        """Whether nobody needs this pod's state any more."""


@dataclass(slots=True)
class Elsewhere:
    """All of it, by the nodes' names. `objects` are in the object store. A line is a workload and
    all that continues from its state: `ran` counts by line how often its tree was thawed, wherever;
    `lines` are the lines of trees, as (node, handle); `successors` are the pods that continue with
    the line of another one: what any other continues from is a copy, which begins a line of its
    own. `forgives`: nodes lost records, so that an older state may be had.

    `pods`, `copies` and `kept` are the registry's: claims, the places that have verified states,
    and the states of which people keep the copy in the object store.
    """

    machines: dict[str, Here] = field(default_factory=dict)
    objects: dict[ArtifactId, Keeping] = field(default_factory=dict)
    ran: dict[str, int] = field(default_factory=dict)
    lines: dict[tuple[str, str], str] = field(default_factory=dict)
    successors: set[PodUid] = field(default_factory=set)
    forgives: bool = False
    pods: dict[tuple[str, str], PodRecord] = field(default_factory=dict)
    copies: dict[ArtifactId, dict[Copy, bool]] = field(default_factory=dict)
    kept: set[ArtifactId] = field(default_factory=set)
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
    def _runs(machine: Here, handle: str) -> bool:
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
        """Whether somebody has nothing but this state to continue from: the newest of its line, of
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
