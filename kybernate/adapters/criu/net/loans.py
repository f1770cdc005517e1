"""What is lent to a container's network for a restore, until it is taken back.

It is written down first, so that an agent that was restarted takes it back: left alone, the pod
would have another pod's address, and reach that pod no more. Its network is its pod's, and outlives
the container: if that has ended, any process of the pod's leads there.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate.adapters.criu.container import Container
from kybernate.adapters.criu.net import addresses
from kybernate.adapters.files import sums
from kybernate.adapters.kernel import smallfile
from kybernate.errors import NotFoundError, RefusedError
from kybernate.ports import DumpState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

FILE = "lent.json"
_LOST = "what its pod's network was lent stays there; delete the pod, and it goes"
_TICKS = os.sysconf("SC_CLK_TCK")


def lend(container: Container, wanted: Collection[str]) -> None:
    """The container's network has these addresses until `take_back`. Blocks; on an error all is as
    before. Raises OSError, RefusedError on the node's own network."""
    take_back(container)
    lent = addresses.lacking(container, wanted) if wanted else addresses.Lent()
    if lent == addresses.Lent():
        return
    part = (container.work / FILE).with_suffix(".part")
    part.write_text(json.dumps(sums.summed(_note(container, lent))))
    part.replace(container.work / FILE)
    try:
        addresses.lend(container, lent)
    except (OSError, RefusedError):
        take_back(container)
        raise


def take_back(container: Container) -> None:
    """What was lent, also by an agent that is no more; nothing if nothing was. Blocks. Raises
    OSError, ValueError."""
    if _taken_back(container):
        (container.work / FILE).unlink()


def take_back_left(work: Path, proc: Path) -> None:
    """The same for the container of this folder, also if it has ended. Blocks. Raises OSError,
    ValueError."""
    container = Container(int(work.name.partition("-")[0]), Path(), -1, work, proc)
    # Of half a tree the next restore is to end what is still bound to the address.
    if _taken_back(container) and not _is_half(container):
        (work / FILE).unlink()


def _taken_back(container: Container) -> bool:
    """Whether something was lent; if so, nothing of it is left."""
    try:
        note = sums.read(container.work / FILE, _LOST)
    except FileNotFoundError:
        return False
    if not note:
        return False
    lent = addresses.Lent(tuple(note["addresses"]), tuple(note["routes"]))
    found = _somebody(container, note)
    if found is not None:
        addresses.take_back(found, lent)
    return True


def _note(container: Container, lent: addresses.Lent) -> dict[str, object]:
    """What was lent, and to whose network: which, in which boot, and when it was there (ticks)."""
    return {
        "addresses": lent.addresses,
        "routes": lent.routes,
        "network": _network(container.proc, container.init),
        "boot": _boot(container.proc),
        "at": int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS),
    }


def _somebody(container: Container, note: Mapping[str, Any]) -> Container | None:
    """The container, or, if it has ended, another process in whose network it was; None if nobody
    has that network any more."""
    proc = container.proc
    if "network" not in note:
        # Of an older release.
        return container if _is_there(container) else None
    if note["boot"] != _boot(proc):
        return None
    others = (int(name) for name in os.listdir(proc) if name.isdigit())
    for pid in (container.init, *others):
        with suppress(OSError):
            # What began later may have another network, which got its number.
            if _network(proc, pid) == note["network"] and _began(proc, pid) <= note["at"]:
                return replace(container, init=pid)
    return None


def _is_half(container: Container) -> bool:
    """Whether what there is of a tree, if anything is, was being recreated."""
    with suppress(NotFoundError):
        return _is_there(container) and container.state is DumpState.PARKED
    return False


def _is_there(container: Container) -> bool:
    """Whether its process 1 lives."""
    with suppress(OSError):
        began = _began(container.proc, container.init)
        return container.work.name == f"{container.init}-{began}"
    return False


def _network(proc: Path, pid: int) -> str:
    return os.readlink(f"{proc}/{pid}/ns/net")


def _began(proc: Path, pid: int) -> int:
    """When the process did, in ticks since boot."""
    return int(smallfile.read(f"{proc}/{pid}/stat").rpartition(")")[2].split()[19])


def _boot(proc: Path) -> str:
    return smallfile.read(f"{proc}/sys/kernel/random/boot_id").strip()
