"""A tree's sockets: which are whose other end, which serve others, what comes in on them."""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals.duplicates import (
    SLICE,
    Duplicator,
    let_go,
    places_of,
    row_of,
)
from kybernate.adapters.arrivals.sockdiag import LISTEN, InetRow
from kybernate.core.swap.traffic import Connection, Traffic
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kybernate.adapters.arrivals.duplicates import Place
    from kybernate.adapters.arrivals.sockdiag import Address

MOST_SOCKETS = 65536
"""More than this of one tree are not looked at."""

_LOOPBACK_4 = b"\x7f"
_LOOPBACK_6 = bytes(15) + b"\x01"


@dataclass(slots=True)
class Survey:
    """The sockets of a tree. `places` says which descriptor of which process an inode is.

    `beyond` counts sockets that were left out for being too many.
    """

    places: dict[int, Place] = field(default_factory=dict)
    beyond: int = 0
    tcp: list[InetRow] = field(default_factory=list)
    udp: list[InetRow] = field(default_factory=list)

    def listeners(self) -> list[InetRow]:
        """TCP sockets on which the tree listens."""
        return [row for row in self.tcp if row.state == LISTEN]

    def ports(self) -> frozenset[int]:
        """TCP ports on which the tree listens."""
        return frozenset(row.local[1] for row in self.listeners())

    def outside(self) -> list[InetRow]:
        """The tree's connections whose other end isn't in the tree."""
        within = self.within()
        connections = (row for row in self.tcp if row.state != LISTEN)
        return [row for row in connections if row.inode not in within]

    def within(self) -> frozenset[int]:
        """Inodes of the tree's connections to itself, also where one end is not accepted yet."""
        ends, ports = self._ends(), self.ports()
        return frozenset(
            row.inode
            for row in self.tcp
            if (row.peer, row.local) in ends or (_is_here(row) and row.peer[1] in ports)
        )

    def own_waiting(self, unaccepted: Iterable[InetRow], port: int) -> int:
        """How many of the unaccepted connections at this port are the tree's to itself."""
        ends = self._ends()
        mine = (row for row in unaccepted if row.local[1] == port)
        return sum((row.peer, row.local) in ends for row in mine)

    def strangers_waiting(self, unaccepted: Iterable[InetRow]) -> int:
        """How many of the unaccepted connections at the tree's ports are not its own."""
        ends, ports = self._ends(), self.ports()
        return sum(
            row.local[1] in ports and (row.peer, row.local) not in ends for row in unaccepted
        )

    def queued(self) -> int:
        """Connections that wait to be accepted, the tree's own among them."""
        return sum(row.unread for row in self.listeners())

    def traffic(self, queued: int) -> Traffic:
        """What comes to the tree from outside; `queued` connections wait to be accepted."""
        ports = self.ports()
        inbound = (row for row in self.outside() if row.local[1] in ports)
        return Traffic(
            queued=queued,
            datagrams=sum(row.unread for row in self.udp),
            connections=tuple(connection(row, inbound=True) for row in inbound),
        )

    def _ends(self) -> frozenset[tuple[Address, Address]]:
        """(own address, peer's address) of each of the tree's connections."""
        return frozenset((row.local, row.peer) for row in self.tcp if row.state != LISTEN)


def connection(row: InetRow, *, inbound: bool) -> Connection:
    """The row in the core's words."""
    return Connection(
        inbound=inbound,
        unread=row.unread,
        unsent=row.unsent,
        received=row.received,
        sent=row.sent,
        since_received=row.since_received,
        since_sent=row.since_sent,
    )


async def survey_of(pids: Sequence[int]) -> Survey:
    """Look at these processes' sockets, one duplicate at a time. Raises OSError."""
    found = Survey()
    found.places, found.beyond = await places_of(pids, MOST_SOCKETS)
    duplicator = Duplicator()
    try:
        for count, (inode, place) in enumerate(found.places.items()):
            _read(found, duplicator, inode, place)
            if count % SLICE == SLICE - 1:
                await asyncio.sleep(0)
    finally:
        duplicator.close()
    return found


def _read(found: Survey, duplicator: Duplicator, inode: int, place: Place) -> None:
    one = duplicator.duplicate(place)
    if one is None:
        return
    try:
        row = row_of(one, inode)
        if row is not None:
            (found.tcp if row.state else found.udp).append(row)
    finally:
        let_go(one, place)


def _is_here(row: InetRow) -> bool:
    """Whether its peer is at an address of this very network."""
    host = row.peer[0]
    loopback = host == _LOOPBACK_6 or (len(host) == 4 and host.startswith(_LOOPBACK_4))
    return row.state != LISTEN and (loopback or host == row.local[0])
