"""Seats in every tier, each with a state that shows whether it was kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import requests

from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster.processes.control import wait_until
from tests.kit.pods import Pods, SeatPod, ready
from tests.upgrade.traffic import ask

if TYPE_CHECKING:
    from tests.upgrade.fleet import Fleet

TIERS = ("vram", "ram", "nvme", "object")
GROUPS = {"old": ("G0", "G1"), "new": ("G4", "G5")}
"""Of each set, the GPU of the active seat, and that on which the parked ones take turns."""
SHOWN_LIMIT_S = 60.0
READY_LIMIT_S = 90.0


@dataclass(slots=True)
class Seats:
    """One seat in each tier, and what each answered last."""

    fleet: Fleet
    prefix: str
    last: dict[str, dict[str, Any]] = field(default_factory=dict)
    parked_again: list[str] = field(default_factory=list)
    """Why a park had to be asked for once more, after the seat was awake in between."""

    @property
    def names(self) -> dict[str, str]:
        """The pod of each tier; it is its model, too."""
        return {tier: f"{self.prefix}-{tier}" for tier in TIERS}

    def open(self) -> None:
        """Make the pods, have each answer, and put each into its tier. Raises KybernateError."""
        pods = Pods(self.fleet.cluster.api())
        active, parked = GROUPS[self.prefix]
        for tier, name in self.names.items():
            group = {keys.REQUIRE_GROUP: active if tier == "vram" else parked}
            pods.create(SeatPod(name, bytes_="1GiB", annotations=group))
        pods.wait(self.names.values(), ready, READY_LIMIT_S, "Ready")
        for tier, name in self.names.items():
            await_model(self.fleet, name)
            if wrong := self.answers(tier):
                raise KybernateError(wrong)
        self.put_all()

    def close(self) -> None:
        """Take the pods away."""
        pods = Pods(self.fleet.cluster.api())
        pods.delete(self.names.values(), grace=0)
        pods.gone(self.names.values(), 60)

    def put_all(self) -> None:
        """Have each seat be in its tier. Raises KybernateError with what its agent said."""
        for tier in TIERS:
            self.put(tier)

    def put(self, tier: str) -> None:
        """Have the tier's seat be there. Raises KybernateError with what its agent said."""
        if tier != "vram":
            self._park(tier)
        self._await_place(tier, SHOWN_LIMIT_S)

    def _park(self, tier: str) -> None:
        told = self.fleet.park(self.names[tier], tier)
        if told["state"] == "succeeded":
            return
        self.parked_again.append(f"{self.names[tier]}: {told}")
        # The wish stays: awake once in between, its tree is frozen anew and written down.
        if wrong := self.answers(tier):
            raise KybernateError(wrong)
        self._await_place(tier, SHOWN_LIMIT_S)

    def _await_place(self, tier: str, limit: float) -> None:
        name = self.names[tier]
        wanted = ("active", "") if tier == "vram" else ("parked", tier)
        wait_until(
            lambda: _place(self.fleet, name) == wanted,
            limit,
            lambda: f"{name} isn't shown {wanted}: {self.fleet.seat(name)}",
        )

    def answers(self, tier: str) -> str:
        """Have the tier's seat answer; what is wrong with that, empty if it went on as it was."""
        name, before = self.names[tier], self.last.get(tier)
        try:
            answer = ask(self.fleet.proxy_url, name)
        except requests.RequestException as error:
            return f"{name}: {error}"
        if answer.status != 200:
            return f"{name}: {answer.status} {answer.body}"
        told = answer.body["kyb"]
        self.last[tier] = told
        if not answer.intact:
            return f"{name}: its memory is wrong: {told}"
        if before and (told["boot"], told["pid"]) != (before["boot"], before["pid"]):
            return f"{name}: it began again: {before} and then {told}"
        if before and told["counter"] != before["counter"] + 1:
            return f"{name}: counted {before['counter']} and then {told['counter']}"
        return ""


def _place(fleet: Fleet, name: str) -> tuple[str, str]:
    seat = fleet.seat(name)
    state = str(seat.get("state"))
    return state, "" if state == "active" else str(seat.get("tier"))


def await_model(fleet: Fleet, name: str) -> None:
    """Until the proxy knows the model. Raises DeadlineError."""

    def known() -> bool:
        listed = requests.get(f"{fleet.proxy_url}/v1/models", timeout=10).json()["data"]
        return name in {model["id"].rpartition("/")[2] for model in listed}

    wait_until(known, 30, f"the proxy knows no model {name}")
