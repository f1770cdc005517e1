"""What a cluster has made on this machine, written down before it is made."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.cluster.processes.procs import ProcessId

if TYPE_CHECKING:
    from pathlib import Path

MOUNT = "mount"
BRIDGE = "bridge"
CGROUP = "cgroup"
IP_FORWARD = "ip_forward"


@dataclass(slots=True)
class State:
    """The record of one cluster in one file.

    `made` lists what `down` must undo, in order of creation: kind and value. `facts` is what
    clients of the running cluster want to know.
    """

    file: Path
    supervisor: ProcessId | None = None
    made: list[tuple[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> State | None:
        """The record, or None if there's none that can be read."""
        try:
            raw = json.loads(file.read_text())
        except (OSError, ValueError):
            return None
        given = raw.get("supervisor")
        supervisor = ProcessId(*given) if given else None
        made = [(str(kind), str(value)) for kind, value in raw.get("made", [])]
        return cls(file, supervisor, made, raw.get("facts", {}))

    def will_make(self, kind: str, value: str) -> None:
        """Writes down what is about to be made."""
        if (kind, value) not in self.made:
            self.made.append((kind, value))
            self.write()

    def write(self) -> None:
        """Puts the record on disk, whole."""
        supervisor = self.supervisor
        raw = {
            "supervisor": [supervisor.pid, supervisor.started] if supervisor else None,
            "made": self.made,
            "facts": self.facts,
        }
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(raw, indent=1))
        part.replace(self.file)
