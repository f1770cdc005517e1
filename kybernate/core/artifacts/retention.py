"""Whether a copy of an artifact may be removed: the last verified one never is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def why_keep(place: str, copies: Mapping[str, bool], forget: str = "") -> str:
    """Why the copy in `place` must stay, as a sentence; empty if it may go.

    `copies`: every place that holds one, and whether it was verified there. `forget` says why
    nobody needs the artifact any more, if that is so.
    """
    if forget or place not in copies:
        return ""
    if any(verified for other, verified in copies.items() if other != place):
        return ""
    others = ", ".join(sorted(other for other in copies if other != place))
    elsewhere = f"what {others} has is not verified" if others else "there is no other"
    return (
        f"The copy in {place} is the last verified one ({elsewhere}); pack it into another place "
        "first, or say why it can be forgotten."
    )
