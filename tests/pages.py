"""Lists of generated pages, in lines of at most 120 columns."""

from __future__ import annotations

import textwrap

WIDTH = 120


def item(text: str, *details: str) -> str:
    """An item of a list, and below it its details, each on lines of its own."""
    lines = [_wrapped(text, "- ", "  "), *(_wrapped(one, "  - ", "    ") for one in details if one)]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, first: str, others: str) -> str:
    # A line that begins with one of these would begin a list or a title of its own.
    held = text.replace(" - ", "\0- ").replace(" # ", "\0# ").replace(" + ", "\0+ ")
    lines = textwrap.wrap(
        held,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")
