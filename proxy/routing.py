"""Which model a name stands for. Pure.

A model's full name is `namespace/model`: no other namespace can have it, whatever its pods call
theirs. Its plain name is short for that where only one namespace uses it. Where several do, it
stands for none of them: who came first is forgotten with a restart, and then one tenant would get
another's requests. The settings may put a namespace first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proxy.actions import SeatInfo


def routes(seats: Iterable[SeatInfo], name: str, first: Sequence[str]) -> list[str]:
    """The full names that `name` may stand for: none is unknown, several are ambiguous.

    `first`: namespaces that plain names lead to, the first one first.
    """
    found: dict[str, str] = {}
    for seat in seats:
        if seat.route == name:
            return [name]
        if seat.model == name:
            found[seat.route] = seat.namespace
    for namespace in first if len(found) > 1 else ():
        for route, of in found.items():
            if of == namespace:
                return [route]
    return sorted(found)


def names(seats: Sequence[SeatInfo], first: Sequence[str]) -> dict[str, str]:
    """Each model's full name, and the shortest name that leads to it."""
    every = {seat.route: seat.model for seat in seats if seat.model}
    return {
        route: plain if routes(seats, plain, first) == [route] else route
        for route, plain in sorted(every.items())
    }


def refusal(name: str, found: Sequence[str], known: Iterable[str]) -> tuple[int, str, str]:
    """Status, code and sentence for a name that doesn't stand for one model."""
    if found:
        reason = f"{name} may be {' or '.join(found)}: name one of these as the model."
        return 409, "model_ambiguous", reason
    here = ", ".join(known) or "none yet"
    return 404, "model_not_found", f"The model {name!r} does not exist here. Known models: {here}."
