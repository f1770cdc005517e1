"""`python -m tests.strangers.commits`: the few programs that are parked for this commit, as an
expression for pytest's `-k`. Which they are follows from the commit's hash, as in tests/slices.py:
over many commits each comes as often as any other.
"""

from __future__ import annotations

from tests.slices import Slice, head
from tests.strangers.programs import STRANGERS, Stranger

A_RUN = 3
"""So many side by side take as long as one."""


FETCHED_MB = 300
"""What no slice comes to where nothing is in the cache."""


def slices() -> list[list[Stranger]]:
    """All programs, in as few slices as hold A_RUN each. The largest to fetch are in different
    ones: with each largest come the smallest."""
    ordered = sorted(STRANGERS, key=lambda one: (-one.fetched_mb, one.name))
    count = -(-len(ordered) // A_RUN)
    heads, tails = ordered[:count], ordered[count:]
    return [[head, *tails[::-1][at::count]] for at, head in enumerate(heads)]


def of_commit(commit: str) -> list[Stranger]:
    """The slice of a commit, by its full hash."""
    found = slices()
    return found[Slice(len(found), commit).number]


def here() -> list[Stranger]:
    """The slice of what is checked out; of an unpacked archive, the first."""
    return of_commit(head())


if __name__ == "__main__":
    print(" or ".join(f"[{one.name}]" for one in here()))
