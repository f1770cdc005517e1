"""Programs that use a GPU in one way each. They need no more than cuda-bindings, or PyTorch.

Each says `ready`, with the numbers of further processes that use CUDA, or `missing` and why; then
it answers each line of its input with a line.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable


def missing(why: str) -> NoReturn:
    """Say that this program can't run here, and end."""
    print("missing", why, flush=True)
    sys.exit(0)


def serve(answer: Callable[[], object], *pids: int) -> None:
    """Answer until the input ends."""
    print("ready", *pids, flush=True)
    for _ in sys.stdin:
        print(answer(), flush=True)
