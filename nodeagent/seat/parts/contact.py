"""How a seat is reached: by its kyb-init, and over the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kybernate.ports import GateHello


@dataclass(slots=True)
class Contact:
    """`connected`: its kyb-init is; `next_hello`: of a new one that waits until the old is gone.

    `image_mode`: kyb-init runs the image's command. `address` is where requests go once it has
    started. `unlooked`: nobody has looked yet whether something arrived at its sockets since it was
    frozen.
    """

    connected: bool = False
    next_hello: GateHello | None = None
    image_mode: bool = False
    pod_ip: str = ""
    address: str = ""
    unlooked: bool = False
