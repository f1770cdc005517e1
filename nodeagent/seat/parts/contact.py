"""How a seat is reached: by its kyb-init, and over the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from kybernate.ports import GateHello


@dataclass(slots=True)
class Contact:
    """`connected`: its kyb-init is; `next_hello`: of a new one that waits until the old is gone.

    `image_mode`: kyb-init runs the image's command. `begun`: it said that the command runs, or
    was told to run it. `address` is where requests go once it has started. `unheard`: lines of the
    journal are lost, and its kyb-init, which lives, has not said since where the seat is.
    `unlooked`: nobody has looked yet whether something arrived at its sockets since it was frozen.
    """

    connected: bool = False
    next_hello: GateHello | None = None
    image_mode: bool = False
    begun: bool = False
    pod_ip: str = ""
    address: str = ""
    unlooked: bool = False
    unheard: bool = False

    def doubted(self) -> None:
        """Its record may be an older one."""
        self.unheard = True

    def greeted(self, *, image_mode: bool, begun: bool) -> None:
        """Its kyb-init says whose command it runs, and whether that has begun."""
        self.image_mode, self.begun, self.unheard = image_mode, begun, False

    def let_go(self) -> None:
        """Its kyb-init is told to start the command."""
        self.begun = True

    def made(self) -> None:
        """Its kyb-init is connected."""
        self.connected = True

    def lost(self) -> None:
        """Its kyb-init is not connected any more; what it was told last, it may not have heard."""
        self.connected = self.begun = False

    def ended(self) -> None:
        """Its container has ended: nobody answers."""
        self.connected, self.begun, self.address, self.unheard = False, False, "", False

    def queue(self, hello: GateHello) -> None:
        """A new kyb-init waits until the old one is gone."""
        self.next_hello = hello

    def next_one(self) -> GateHello | None:
        """The hello of the kyb-init that waits, if one does; it is welcomed now."""
        hello, self.next_hello = self.next_hello, None
        return hello

    def moved(self, pod_ip: str) -> None:
        """Its pod has this address."""
        self.pod_ip = pod_ip

    def serves(self, port: int | None) -> bool:
        """Requests may be sent to this port from now on; whether it has an address for them."""
        if not self.pod_ip or not port:
            return False
        self.address = f"{self.pod_ip}:{port}"
        return True

    def stands_still(self) -> None:
        """It was frozen: somebody will look at its sockets."""
        self.unlooked = True

    def looked_at(self) -> None:
        """Somebody has looked at its sockets, and watches them."""
        self.unlooked = False
