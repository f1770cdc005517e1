"""A plan, or that there is none, in sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.defrag.model import NoPlan
from kybernate.core.plans.steps import sentence, time

if TYPE_CHECKING:
    from kybernate.core.defrag.model import Plan


def sentences(answer: Plan | NoPlan) -> tuple[str, ...]:
    """The summary first, then one sentence for each step, in order."""
    if isinstance(answer, NoPlan):
        return (_capital(answer.why) + ".",)
    return (_summary(answer), *map(sentence, answer.steps))


def _summary(answer: Plan) -> str:
    if not answer.moves:
        return "Nothing has to move: there is room as it is."
    moves = f"{answer.moves} move{'s' * (answer.moves > 1)}"
    first = f"{moves} make{'s' * (answer.moves == 1)} room, for {time(answer.seconds)} in all; "
    if answer.proven:
        return first + "no other moves cost less."
    return first + (
        f"moves that cost less are not ruled out (none costs less than {time(answer.at_least)}): "
        "allow more effort to be sure."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
