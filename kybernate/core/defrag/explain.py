"""A plan, or that there is none, in sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.defrag.model import Kind, NoPlan

if TYPE_CHECKING:
    from kybernate.core.defrag.model import Plan, Step

_GIB = 1 << 30


def sentences(answer: Plan | NoPlan) -> tuple[str, ...]:
    """The summary first, then one sentence for each step, in order."""
    if isinstance(answer, NoPlan):
        return (_capital(answer.why) + ".",)
    return (_summary(answer), *(_told(step) for step in answer.steps))


def _summary(answer: Plan) -> str:
    if not answer.moves:
        return "Nothing has to move: there is room as it is."
    moves = f"{answer.moves} move{'s' * (answer.moves > 1)}"
    first = f"{moves} make{'s' * (answer.moves == 1)} room, for {_time(answer.seconds)} in all; "
    if answer.proven:
        return first + "no other moves cost less."
    return first + (
        f"moves that cost less are not ruled out (none costs less than {_time(answer.at_least)}): "
        "allow more effort to be sure."
    )


def _told(step: Step) -> str:
    size = f"{step.size / _GIB:.1f} GiB"
    source, target = _place(step.source), _place(step.target)
    match step.kind:
        case Kind.MOVE:
            return f"Move {step.pod} ({size}, {_time(step.seconds)}) from {source} to {target}."
        case Kind.SUSPEND:
            return (
                f"Suspend {step.pod} ({size}, {_time(step.seconds)} with its return): pods wait "
                f"for each other's places, and it gives up {source} first."
            )
        case Kind.RESUME:
            return f"Resume {step.pod} ({size}) at {target}."
        case Kind.PLACE:
            return f"Now {step.pod} ({size}) fits {target}."


def _place(place: tuple[str, str] | None) -> str:
    return f"group {place[1]} of {place[0]}" if place else "nowhere"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:.0f} min"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
