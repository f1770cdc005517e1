"""Which agents' certificates count: the list of nodes that were revoked, and let in again. Pure.

One entry a node, JSON of format 1. While a node is revoked none of its certificates counts, and it
gets no new one. Once it is admitted again, those that were made before count no more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
LONGEST_WHY = 512


@dataclass(frozen=True, slots=True)
class Access:
    """What was last decided of a node. `at_ms`: when, in milliseconds since 1970."""

    revoked: bool
    at_ms: int
    why: str = ""

    def text(self) -> str:
        """As the list has it."""
        state = "revoked" if self.revoked else "admitted"
        return json.dumps(
            {"format": FORMAT, "state": state, "at_ms": self.at_ms, "why": self.why[:LONGEST_WHY]}
        )


def read_list(texts: Mapping[str, str]) -> dict[str, Access]:
    """The list by nodes. Whose entry can't be read is revoked: somebody wanted to say something."""
    return {node: _read(text) for node, text in texts.items()}


def why_not(known: Mapping[str, Access], node: str, made_ms: int) -> str:
    """Why an agent's certificate that was made then doesn't count; empty if it does."""
    found = known.get(node)
    if found is None:
        return ""
    if found.revoked:
        return f"node {node} is revoked: kybernate node admit {node} lets it in again"
    if made_ms < found.at_ms:
        return f"node {node} was let in again since its certificate was made: it needs another"
    return ""


def _read(text: str) -> Access:
    try:
        found: Any = json.loads(text)
        state, at, why = found["state"], int(found["at_ms"]), str(found.get("why") or "")
        known = found["format"] == FORMAT and state in ("revoked", "admitted")
    except (ValueError, KeyError, TypeError, AttributeError):
        known, state, at, why = False, "", 0, ""
    if not known:
        return Access(revoked=True, at_ms=0, why="its entry can't be read by this version")
    return Access(state == "revoked", at, why)
