"""docs/reference/node/migration.md, rendered from the table of the protocol. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from kybernate.core.migration.protocol import (
    ACT_MEANING,
    EVENT_MEANING,
    OVER,
    STATE_MEANING,
    TARGET,
    TRANSITIONS,
    Act,
    Event,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = (
    "Rendered from the transition table in `kybernate/core/migration/protocol.py`. Two agents",
    "carry out a move to another pod, at the source and at the target; within a node one is both.",
    "Each takes a step as its acts, in order; then the work of the new state begins. After an",
    "agent's death the next one finds the state from what is on the disks",
    "([moves](../../concepts/moves.md)).",
    "",
    "The tests interrupt the table before each act, at either end and at both, and see that at",
    "most one pod runs, with the newest state, which still exists.",
)


def render_markdown() -> str:
    """The page, whole."""
    return "\n".join(
        [
            "# The states of a migration",
            "",
            *_HEAD,
            "",
            *_end("source", [state for state in State if state not in TARGET]),
            *_end("target", [state for state in State if state in TARGET]),
            "## Acts",
            "",
            "| act | meaning |",
            "|---|---|",
            *(f"| {act} | {ACT_MEANING[act]} |" for act in Act),
            "",
        ]
    )


def _end(name: str, states: list[State]) -> Iterator[str]:
    """One end: its picture, its states, its events, its steps."""
    rows = {key: step for key, step in TRANSITIONS.items() if key[0] in states}
    events = [event for event in Event if any(each is event for _, each in rows)]
    yield from (f"## The {name}", "", "```mermaid", "stateDiagram-v2")
    yield f"    [*] --> {states[0]}"
    yield from (f"    {state} --> {step.to}: {event}" for (state, event), step in rows.items())
    yield from (f"    {state} --> [*]" for state in states if state in OVER)
    yield from ("```", "", "| state | meaning |", "|---|---|")
    yield from (f"| {state} | {STATE_MEANING[state]} |" for state in states)
    yield from ("", "| event | meaning |", "|---|---|")
    yield from (f"| {event} | {EVENT_MEANING[event]} |" for event in events)
    yield from ("", "Steps, with their acts in order:", "")
    for (state, event), step in rows.items():
        acts, why = ", ".join(step.acts) or "no act", f" ({step.why})" if step.why else ""
        entry = f"- {state}, **{event}** → {step.to}: {acts}{why}"
        yield textwrap.fill(entry, 120, subsequent_indent="  ", break_on_hyphens=False)
    yield ""
