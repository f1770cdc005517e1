"""Trees as they were dumped, and the artifacts made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.core.artifacts.into import Container
from kybernate.core.artifacts.manifest import Facts
from kybernate.core.artifacts.match import Target
from kybernate.core.artifacts.privileges import Privileges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.types import PodUid, Tier
    from tests.kit.machine.processes import FakeProcess

FACTS = Facts(
    *("", "", "", "main", "sha256:1", "9f2c", "6.18", "4.2.1", "x86_64", 100),
    Privileges((), ()),
    *("H100", 1, "580.95.05", "13.0"),
    root_pid=2,
)
"""What the manifests of all states say, but for what each says for itself."""
CONTAINER = Container(
    Target(
        *(FACTS.image_digest, FACTS.spec_hash, FACTS.kernel, FACTS.criu, FACTS.architecture),
        *(FACTS.gpu_product, FACTS.gpu_count, FACTS.driver, FACTS.cuda),
    ),
    Privileges((), ()),
)
"""What every container of the machine is: all may have each other's states, but for namespaces."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tree as it was when it had been thawed `ran` times. `line`: whose state it is, through all
    its successors; `whole`: all of it was written; `besides`: bytes that were on no GPU."""

    uid: PodUid
    handle: str
    ran: int
    processes: tuple[FakeProcess, ...] = ()
    whole: bool = False
    line: str = ""
    besides: int = 0

    @property
    def first(self) -> int:
        """Bytes that were on GPUs."""
        return sum(sum(process.memory.values()) for process in self.processes)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.first + self.besides


@dataclass(slots=True)
class Keeping:
    """An artifact, the folder with its images, the places that have it, and whether it is copied
    into another one just now."""

    snapshot: Snapshot
    folder: str
    places: set[Tier] = field(default_factory=set)
    facts: Mapping[str, object] = field(default_factory=dict)
    packing: bool = False
