"""docs/reference/node/migration.md, rendered from the tables of moves and of evacuations. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kybernate.core.migration import evacuation, protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Rows = Mapping[tuple[Any, Any], tuple[Any, tuple[str, ...], str]]
    """By state and event: to which state, by which acts, and why."""

_HEAD = (
    "Rendered from the transition tables in `kybernate/core/migration/protocol.py` and",
    "`kybernate/core/migration/evacuation.py`. Two agents carry out a move to another pod, at the",
    "source and at the target; within a node one is both. Each takes a step as its acts, in order;",
    "then the work of the new state begins. After an agent's death the next one finds the state",
    "from what is on the disks ([moves](../../concepts/moves.md)).",
    "",
    "The tests interrupt the tables before each act, the move's at either end and at both, and see",
    "that at most one pod runs, with the newest state, which still exists.",
)


def render_markdown() -> str:
    """The page, whole."""
    move: Rows = {key: (row.to, row.acts, row.why) for key, row in protocol.TRANSITIONS.items()}
    leave: Rows = {key: (to, acts, "") for key, (to, acts) in evacuation.TRANSITIONS.items()}
    source = {s: m for s, m in protocol.STATE_MEANING.items() if s not in protocol.TARGET}
    target = {s: m for s, m in protocol.STATE_MEANING.items() if s in protocol.TARGET}
    return "\n".join(
        [
            "# The states of a migration",
            "",
            *_HEAD,
            "",
            *_machine("The source", source, protocol.EVENT_MEANING, move, protocol.OVER),
            *_machine("The target", target, protocol.EVENT_MEANING, move, protocol.OVER),
            "## Acts",
            "",
            *_meanings("act", protocol.ACT_MEANING),
            "",
            *_machine(
                "A seat of a node that is evacuated",
                evacuation.STATE_MEANING,
                evacuation.EVENT_MEANING,
                leave,
                evacuation.OVER,
            ),
            *_meanings("act", evacuation.ACT_MEANING),
            "",
        ]
    )


def _machine(
    title: str,
    states: Mapping[Any, str],
    events: Mapping[Any, str],
    table: Rows,
    over: frozenset[Any],
) -> Iterator[str]:
    """Its picture, its states, its events, its steps."""
    rows = {key: row for key, row in table.items() if key[0] in states}
    known = {each: events[each] for each in events if any(event is each for _, event in rows)}
    ids = {state: state.replace(" ", "_") for state in states}
    yield from (f"## {title}", "", "```mermaid", "stateDiagram-v2")
    yield from (f'    state "{state}" as {each}' for state, each in ids.items() if each != state)
    yield f"    [*] --> {ids[next(iter(states))]}"
    yield from (f"    {ids[s]} --> {ids[to]}: {event}" for (s, event), (to, *_) in rows.items())
    yield from (f"    {each} --> [*]" for state, each in ids.items() if state in over)
    yield from ("```", "", *_meanings("state", states), "")
    yield from (*_meanings("event", known), "", "Steps, with their acts in order:", "")
    for (state, event), (to, acts, why) in rows.items():
        entry = f"- {state}, **{event}** → {to}: {', '.join(acts) or 'no act'}"
        entry += f" ({why})" if why else ""
        yield textwrap.fill(entry, 120, subsequent_indent="  ", break_on_hyphens=False)
    yield ""


def _meanings(what: str, meanings: Mapping[Any, str]) -> list[str]:
    rows = [f"| {one} | {meaning} |" for one, meaning in meanings.items()]
    return [f"| {what} | meaning |", "|---|---|", *rows]
