"""The agent's offloading put together; what becomes of a state that its seat has done with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.seat.seats import TIER_OF
from kybernate.types import SeatState, Tier
from nodeagent.artifacts.store import Sealer
from nodeagent.offload.ahead import Ahead
from nodeagent.offload.dumps import Dumps
from nodeagent.offload.gates import OFFLOADED, Gates
from nodeagent.offload.lazies import Lazies
from nodeagent.offload.restores import Restores
from nodeagent.offload.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.artifacts.holds import Custody
    from nodeagent.artifacts.succession import Succession
    from nodeagent.offload.ahead import Claimable
    from nodeagent.offload.departures import Departures
    from nodeagent.offload.ground import Ground
    from nodeagent.seat.record import Seat


class Offload:
    """All that carries out the tier manager's steps. `request_wake` is told of what arrives at a
    shut gate; `departures`: seats whose workloads go to other nodes; `claims`: what pods may
    continue from."""

    def __init__(
        self,
        ground: Ground,
        request_wake: Callable[[Seat, str], None],
        custody: Custody,
        succession: Succession,
        departures: Departures,
        claims: Claimable,
    ) -> None:
        self.ground = ground
        self.saves: dict[str, int] = {}
        """Bytes of NVMe that snapshots will take, or take and nothing else counts, by their
        operations; `Saves` alone writes it."""
        self._succession = succession
        self.custody = custody
        self.departures = departures
        self.sealer = Sealer(custody)
        self.gates = Gates(ground, request_wake)
        self.lazies = Lazies(ground.node, ground.life, ground.kick)
        self.ahead = Ahead(ground, self.lazies, claims, self.free)
        self.transfers = Transfers(ground, self.lazies, self.ahead)
        self.restores = Restores(ground, self.gates, self.lazies, self.transfers)
        self.dumps = Dumps(ground, self.gates, self.lazies, self.sealer, succession, departures)

    def others_in(self, tier: Tier) -> int:
        """Bytes of it that no parked seat has: what is held, what is on its way for seats to come,
        what is being saved, and what trees that run still read from."""
        held = self.custody.bytes_in(tier)
        if tier is not Tier.NVME:
            return held
        seats = self.ground.node.seats.values()
        awake = sum(self._unsealed(seat) for seat in seats if seat.state not in TIER_OF)
        return held + self._arriving() + self.ahead.taken + sum(self.saves.values()) + awake

    def free(self) -> int:
        """Bytes of NVMe that nobody has, or waits for."""
        offloading, seats = self.ground.world.offloading, self.ground.node.seats.values()
        limit = offloading.limits.get(Tier.NVME, 0) if offloading else 0
        sealed = sum(seat.saved.size for seat in seats if Tier.NVME in seat.saved.copies)
        unnoted = sum(self._unsealed(seat) for seat in seats if seat.uid in self.custody.unnoted)
        others = self._arriving() + self.custody.bytes_in(Tier.NVME)
        return limit - sealed - unnoted - self.unsealed() - others

    def unsealed(self) -> int:
        """Bytes of NVMe that states of this node take, or will, where nothing is sealed: what seats
        write, fetch or read in folders of their own, what is fetched ahead, what is being saved."""
        unnoted, seats = self.custody.unnoted, self.ground.node.seats.values()
        own = sum(self._unsealed(seat) for seat in seats if seat.uid not in unnoted)
        return own + self.ahead.taken + sum(self.saves.values())

    def _unsealed(self, seat: Seat) -> int:
        if Tier.NVME in seat.saved.copies or not seat.takes(Tier.NVME):
            return 0
        return seat.saved.size or sum(self.ground.node.dump_size(seat))

    def _arriving(self) -> int:
        offloading = self.ground.world.offloading
        return offloading.inbox.room.taken if offloading and offloading.inbox else 0

    def forget(self, seat: Seat, why: str) -> None:
        """The seat runs on, or has ended: its artifact is worth nothing any more."""
        artifact = seat.saved.artifact
        # Before a record of the seat's says that it no longer is on its way.
        unnoted = self.custody.unnoted.pop(seat.uid, artifact)
        if unnoted != artifact:
            self.custody.void(unnoted, why)
        self._succession.let_go(seat, why)
        seat.saved.forgotten()
        seat.tree.follows_none()
        paging = seat.saved.paging
        self.transfers.stop(seat)
        if seat.state is SeatState.RESTORING:
            seat.saved.pages("")  # half of a tree is ended with its container
        if artifact or seat.state in TIER_OF:
            self.ground.life.aside(self.lazies.abandon(seat, paging))
        if seat.state in OFFLOADED and seat.tree.init is not None:
            self.ground.life.aside(self.gates.hang_up(seat.tree.init.pid))

    def let_go(self, seat: Seat) -> None:
        """It stays without a tree, and its artifact is its successor's."""
        self.transfers.stop(seat)
        seat.saved.forgotten()
        self.ground.node.save(seat)
        self.ground.life.aside(self.lazies.abandon(seat))
