"""What a seat's connections say: is a request outstanding on them, or are they idle?

The kernel tells of each connection when bytes last came and when bytes last went. A server whose
last word came later than the client's has answered. Both times are rounded to the kernel's tick
(1 to 10 ms): within one tick the order of the two is unknown, a tie.
"""

from __future__ import annotations

from kybernate.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection between a seat's tree and somebody outside of it.

    `inbound`: the peer connected to a port on which the tree listens. Bytes: `unread` by the tree,
    `unsent` or not yet acknowledged, and `received` and `sent` in its whole life. `since_received`
    and `since_sent` are seconds.
    """

    inbound: bool
    unread: int
    unsent: int
    received: int
    sent: int
    since_received: float
    since_sent: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What comes to a tree from outside, at one moment.

    `queued` connections wait to be accepted, `datagrams` bytes to be read; `connections` are the
    inbound ones.
    """

    queued: int = 0
    datagrams: int = 0
    connections: tuple[Connection, ...] = ()

    def outstanding(self, doubt: float) -> int:
        """How many requests seem to wait for the tree; `doubt` as for `outstanding`."""
        open_requests = sum(outstanding(connection, doubt) for connection in self.connections)
        return self.queued + bool(self.datagrams) + open_requests

    def quiet(self) -> float:
        """Seconds since a byte came or went; infinite without a connection."""
        ages = (min(c.since_received, c.since_sent) for c in self.connections)
        return min(ages, default=float("inf"))


def outstanding(connection: Connection, doubt: float) -> bool:
    """Whether somebody waits for bytes on it: the peer if it is inbound, else the tree.

    A tie younger than `doubt` seconds counts as outstanding, an older one as answered.
    """
    if connection.unread or connection.unsent:
        return True
    asked, since_asked = connection.received, connection.since_received
    answered, since_answered = connection.sent, connection.since_sent
    if not connection.inbound:
        asked, since_asked, answered, since_answered = (
            answered,
            since_answered,
            asked,
            since_asked,
        )
    if not asked:
        return False
    if answered and since_asked == since_answered:
        return since_asked < doubt
    return not answered or since_asked < since_answered
