"""What is lent to a container's network for a restore, until it is taken back.

It is written down first, so that an agent that was restarted takes it back: left alone, the pod
would have another pod's address, and reach that pod no more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from . import addresses
from .container import Container

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

FILE = "lent.json"


def lend(container: Container, wanted: Collection[str]) -> None:
    """The container's network has these addresses until `take_back`. Blocks; on an error all is as
    before. Raises OSError."""
    take_back(container)
    lent = addresses.lacking(container, wanted) if wanted else addresses.Lent()
    if lent == addresses.Lent():
        return
    part = (container.work / FILE).with_suffix(".part")
    part.write_text(json.dumps({"addresses": lent.addresses, "routes": lent.routes}))
    part.replace(container.work / FILE)
    try:
        addresses.lend(container, lent)
    except OSError:
        take_back(container)
        raise


def take_back(container: Container) -> None:
    """What was lent, also by an agent that is no more; nothing if nothing was. Blocks. Raises
    OSError, ValueError."""
    try:
        said = json.loads((container.work / FILE).read_text())
    except FileNotFoundError:
        return
    addresses.take_back(container, addresses.Lent(tuple(said["addresses"]), tuple(said["routes"])))
    (container.work / FILE).unlink(missing_ok=True)


def take_back_left(work: Path, proc: Path) -> None:
    """The same for the container of this folder, if it still runs. Blocks. Raises NotFoundError if
    it is gone, OSError, ValueError."""
    if not (work / FILE).exists():
        return
    with Container.opened(int(work.name.partition("-")[0]), "", work.parent, proc) as container:
        if container.work == work:
            take_back(container)
