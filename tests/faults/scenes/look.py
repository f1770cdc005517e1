"""What can be seen of a pod from outside: of its object, its processes, its cgroups."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate import keys
from tests.cluster.parts.host import hierarchies

if TYPE_CHECKING:
    from tests.kit.pods import Json


@dataclass(frozen=True, slots=True)
class Task:
    """A process of a pod."""

    pid: int
    comm: str
    command: str


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen of a pod: of its object, its container and its model."""

    uid: str
    phase: str
    ready: bool
    ready_since: str
    restarts: int
    boot: str = ""
    counter: int = 0
    problem: str = ""
    """Why its model gives no good answer."""


def tasks(uid: str) -> list[Task]:
    """The processes of a pod, as the host sees them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"pod{uid}" not in (folder / "cgroup").read_text():
                continue
            comm = (folder / "comm").read_text().strip()
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        found.append(Task(int(folder.name), comm, command))
    return found


def children(pid: int) -> list[int]:
    """The children of a process, of all its threads."""
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        found += [int(word) for word in _read(thread / "children").split()]
    return found


def frozen_pods(cgroup: str) -> set[str]:
    """UIDs of pods with something frozen, in a node's cgroup."""
    found = set()
    for root in hierarchies():
        for file, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            for path in (root / cgroup).glob(f"**/{file}"):
                uid = re.search(r"pod([-0-9a-f]{36})", str(path))
                if uid and _read(path) not in (word, ""):
                    found.add(uid[1])
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def has_sidecar(pod: Json) -> bool:
    return any(one["name"] == keys.SIDECAR for one in pod["spec"].get("initContainers", []))


def sidecar_is_back(pod: Json) -> bool:
    told = pod["status"].get("initContainerStatuses", [])
    return any(
        one["name"] == keys.SIDECAR and one["restartCount"] and "running" in one["state"]
        for one in told
    )


def is_over(pod: Json) -> bool:
    return pod["status"]["phase"] in ("Failed", "Succeeded")


def restarts(pod: Json) -> int:
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))


def container_runs(pod: Json) -> bool:
    return any("running" in one["state"] for one in pod["status"].get("containerStatuses", []))


def ready_since(pod: Json) -> str:
    conditions: list[dict[str, Any]] = pod["status"].get("conditions", [])
    return next((str(c["lastTransitionTime"]) for c in conditions if c["type"] == "Ready"), "")
