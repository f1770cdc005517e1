"""Which features of CUDA park with their process, and what the driver says of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.errors import KybernateError
from tests.gpu.driver import ByAdapter, parker
from tests.gpu.held import Held, held
from tests.gpu.machine import SkippedError, simulated
from tests.gpu.questions import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.here import Answer, Here

_EACH = 15.0
"""Seconds that a call may take: some hang."""
_RISKY = ("kinds.ipc", "kinds.managed")
"""Asked last."""


def answers(here: Here) -> Iterator[Answer]:
    """One process for each."""
    names = [one.name for one in KINDS.questions if one.name != "kinds.unharmed"]
    harmed, refused = [], 0
    with parker(_EACH) as ours:
        for name in sorted(names, key=_RISKY.__contains__):
            if here.left() < 2:
                yield name, None, "no time was left; asked alone the part has all of it"
                continue
            try:
                with held(here.uuid, "kinds", name.partition(".")[2]) as one:
                    parks, said, unharmed = _parks(ours, one)
            except SkippedError as error:
                yield name, None, f"not here: {'simulated: ' if simulated() else ''}{error}"
                continue
            yield name, parks, said
            refused += not parks
            harmed += [] if unharmed else [name]
    said = f"{refused} did not park; harmed: {', '.join(harmed) or 'none'}"
    yield "kinds.unharmed", not harmed if refused else None, said


def _parks(ours: ByAdapter, one: Held) -> tuple[bool, str, bool]:
    """Whether it parks and answers as before, what was said, and whether it lives as before."""
    expected = one.answer()
    try:
        ours.park(*one.pids)
    except KybernateError as error:
        return False, f"it doesn't park: {error}", _lives(ours, one, expected)
    try:
        ours.wake(*one.pids)
        found = one.answer()
    except (KybernateError, AssertionError) as error:
        return False, f"it parks, and does not wake: {error}", False
    equal = found == expected
    return equal, "it parks, and answers as before" if equal else f"{found}, not {expected}", equal


def _lives(ours: ByAdapter, one: Held, expected: str) -> bool:
    """After a refusal; a call that hung has left it locked."""
    try:
        ours.wake(*one.pids)
        return one.answer() == expected
    except (KybernateError, AssertionError):
        return False
