"""Which model a name stands for. Pure.

A model's full name is `namespace/model`: no other namespace can have it, whatever its pods call
theirs, so a name with a slash is looked up as a full name and as nothing else, also while the
model is away. A plain name is short for a full one where only one namespace uses it, or did until
a short while ago. Where several do, it stands for none of them: who came first is forgotten with
a restart, and then one tenant would get another's requests. The settings may put namespaces first,
whose names count before all others'.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proxy.actions import SeatInfo

_MOST_AWAY = 10_000


@dataclass(slots=True)
class Away:
    """Models whose last seat has gone: their plain names stay taken for `keep` seconds.

    Else a namesake in another namespace would get their requests while they are redeployed.
    """

    keep: float
    _until: dict[str, tuple[float, SeatInfo]] = field(default_factory=dict)
    _routes: dict[str, set[str]] = field(default_factory=dict)  # of each plain name

    def left(self, seat: SeatInfo, now: float) -> None:
        """This seat, maybe the model's last, is no more."""
        while self._until:
            oldest = next(iter(self._until))
            if self._until[oldest][0] > now and len(self._until) < _MOST_AWAY:
                break
            self._forget(oldest)
        self._forget(seat.route)
        if seat.model and self.keep:
            self._until[seat.route] = (now + self.keep, seat)
            self._routes.setdefault(seat.model, set()).add(seat.route)

    def _forget(self, route: str) -> None:
        _, seat = self._until.pop(route, (0.0, None))
        if seat is not None:
            self._routes[seat.model].discard(route)
            if not self._routes[seat.model]:
                del self._routes[seat.model]

    def seats(self, now: float) -> list[SeatInfo]:
        """What is remembered; some of it may be back."""
        return [seat for until, seat in self._until.values() if until > now]

    def named(self, model: str, now: float) -> list[SeatInfo]:
        """Those of them that have this plain name."""
        found = (self._until[route] for route in self._routes.get(model, ()))
        return [seat for until, seat in found if until > now]


def routes(
    seats: Iterable[SeatInfo], name: str, first: Sequence[str], away: Iterable[SeatInfo] = ()
) -> list[str]:
    """The full names that `name` may stand for: none is unknown, several are ambiguous.

    `first`: namespaces that plain names lead to, the first one first. `away`: seats that left a
    short while ago; a name that leads to one of them leads nowhere else.
    """
    here: dict[str, str] = {}
    for seat in seats:
        if seat.route == name:
            return [name]
        if seat.model == name:
            here[seat.route] = seat.namespace
    taken = here | {seat.route: seat.namespace for seat in away if seat.model == name}
    for namespace in first:
        for route, of in taken.items():
            if of == namespace:
                return [route] if route in here else []
    return sorted(taken) if here and "/" not in name else []


def names(
    seats: Sequence[SeatInfo], first: Sequence[str], away: Sequence[SeatInfo] = ()
) -> dict[str, str]:
    """Each model's full name, and the shortest name that leads to it."""
    every = {seat.route: seat.model for seat in seats if seat.model}
    here, left = by_model(seats), by_model(away)
    return {
        route: plain
        if plain not in every and routes(here[plain], plain, first, left.get(plain, ())) == [route]
        else route
        for route, plain in sorted(every.items())
    }


def by_model(seats: Iterable[SeatInfo]) -> dict[str, list[SeatInfo]]:
    """Seats by the plain names of their models."""
    found: dict[str, list[SeatInfo]] = {}
    for seat in seats:
        found.setdefault(seat.model, []).append(seat)
    return found


def refusal(name: str, found: Sequence[str]) -> tuple[int, str, str]:
    """Status, code and sentence for a name that doesn't stand for one model.

    It names no other model: those may be another tenant's.
    """
    if found:
        reason = (
            f"More than one namespace has a model {name!r}, or had it a short while ago: "
            f"write the namespace before it, as in NAMESPACE/{name}."
        )
        return 409, "model_ambiguous", reason
    if "/" in name:
        namespace, _, model = name.partition("/")
        hint = (
            f"a name with a slash is a full one, here the model {model!r} of the namespace "
            f"{namespace!r}; a model whose own name has a slash is NAMESPACE/{name}"
        )
    else:
        hint = f"if it is new, its pod may not have a seat yet; its full name is NAMESPACE/{name}"
    return 404, "model_not_found", f"No seat serves the model {name!r}: {hint}."
