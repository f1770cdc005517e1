"""Step by step from release to release: replace something, then look at every seat."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.errors import KybernateError
from tests.kit.pods import Pods, SeatPod, ready
from tests.upgrade.seats import TIERS, Seats, await_model
from tests.upgrade.table import Row, Table
from tests.upgrade.traffic import Caller, flowing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.upgrade.fleet import Fleet

TURNS = ("turn-a", "turn-b")
"""Two models of one GPU, asked in turn: each request parks one and wakes the other."""
STEADY = ("steady",)
GROUP = {"turn-a": "G2", "turn-b": "G2", "steady": "G3"}
NEW_GROUP = "G3"
READY_LIMIT_S = 90.0


@dataclass(slots=True)
class Walk:
    """A fleet under requests, with seats in each tier."""

    fleet: Fleet
    older: str
    newer: str
    table: Table
    sets: list[Seats] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    _young: int = 0

    def open(self) -> None:
        """Make the first set of seats and the models that are called."""
        pods = Pods(self.fleet.cluster.api())
        for name, group in GROUP.items():
            pods.create(SeatPod(name, bytes_="1GiB", annotations={keys.REQUIRE_GROUP: group}))
        pods.wait(GROUP, ready, READY_LIMIT_S, "Ready")
        self.callers = [Caller(self.fleet, TURNS), Caller(self.fleet, STEADY)]
        for name in GROUP:
            await_model(self.fleet, name)
        self.more_seats("old")

    def more_seats(self, prefix: str) -> None:
        """Another set of seats, made by what is there now."""
        made = Seats(self.fleet, prefix)
        made.open()
        self.sets.append(made)

    def close(self) -> None:
        """Take all pods away."""
        pods = Pods(self.fleet.cluster.api())
        names = list(pods.all())
        pods.delete(names, grace=0)
        pods.gone(names, 90)

    def step(self, name: str, act: Callable[[], None]) -> Row:
        """Replace something under requests, look at every seat, and put each into its tier."""
        began = time.monotonic()
        lost: dict[str, str] = {}
        with flowing(self.callers) as tally:
            act()
            for tier in TIERS:
                wrong = [why for one in self.sets if (why := one.answers(tier))]
                if wrong:
                    lost[tier] = "; ".join(wrong)
            young = self._new_seat()
            for one in self.sets:
                _put_all(one, lost)
        seconds = time.monotonic() - began
        again = [why for one in self.sets for why in one.parked_again]
        for one in self.sets:
            one.parked_again.clear()
        row = Row(name, dict(self.fleet.at), lost, tally, seconds, young, tuple(again))
        self.table.rows.append(row)
        print(self.table.lines()[-1], *row.wrong, *row.parked_again, sep="\n  ")
        return row

    def put(self, part: str, release: str) -> Row:
        """The step that has one part be of this release."""
        name = f"{part} {self.fleet.at[part]} -> {release}"
        return self.step(name, lambda: self.fleet.put(part, release))

    def put_all(self, release: str) -> Row:
        """The step that has everything be of this release at once."""
        name = f"all {self.fleet.at['agent']} -> {release}"
        return self.step(name, lambda: self.fleet.put_all(release))

    def _new_seat(self) -> str:
        """What is wrong with a seat that is made now; empty if it answers, parks and wakes."""
        self._young += 1
        made = f"young-{self._young}"
        pods, caller = Pods(self.fleet.cluster.api()), Caller(self.fleet, [made])
        pod = SeatPod(made, bytes_="1GiB", annotations={keys.REQUIRE_GROUP: NEW_GROUP})
        try:
            pods.create(pod)
            pods.wait([made], ready, READY_LIMIT_S, "Ready")
            await_model(self.fleet, made)
            caller.call()
            told = self.fleet.park(made, "nvme")
            if told["state"] != "succeeded":
                caller.tally.wrong.append(f"{made} can't be parked: {told}")
            caller.call()
            pods.delete([made], grace=0)
            pods.gone([made], 60)
        except KybernateError as error:
            caller.tally.wrong.append(str(error))
        return "; ".join(caller.tally.wrong)


def _put_all(seats: Seats, lost: dict[str, str]) -> None:
    for tier in TIERS:
        try:
            seats.put(tier)
        except KybernateError as error:
            lost[tier] = "; ".join(filter(None, (lost.get(tier), str(error))))
