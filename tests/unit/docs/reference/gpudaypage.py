"""docs/reference/gpu-day.md: what `make test-gpu` asks, from its own questions."""

from __future__ import annotations

from tests.gpu.questions import PARTS
from tests.pages import item

_PAGE = """# The GPU day

Generated from `tests/gpu/questions.py` by `make generated`. What `make test-gpu` asks of a real
GPU, and how it answers: [how to run it](../how-to/plan/ask-a-gpu.md).

## The JSON

The last line of stdout, and `build/test-gpu.json` (`test-gpu.json` in `$OUT` if that is set, or
`--out FILE`).

| field | what it says |
|---|---|
| `version` | 1; a reader refuses another one |
| `skipped` | why nothing was asked, as without a GPU; else `null` |
| `simulated` | whether the simulated driver answered: then no figure means anything |
| `seconds`, `limit_s` | what the day took, and what it had |
| `failed` | parts that failed or hung, and answers that must be others; none: exit status 0 |
| `differs` | names of answers that are not what Kybernate assumes |
| `parts.NAME` | `ended` (done, skipped, failed, out of time), `why`, `seconds`, `limit_s` |
| `answers.NAME` | `value`, `unit`, `asks`, `says`; `expected` and `differs` if assumed |

Every answer below is always there. One whose `value` is `null` was not got, and `says` tells why:
no GPU, no time, no root, no PyTorch, gVisor, or not in the simulated driver. A part is *out of
time* that had not come to its end when its time was over: something hung. What it had answered by
then counts.

*Assumed* is what Kybernate takes for granted; an answer that differs has consequences for its code
or documents, and fails nothing. *Must* fails the day.
"""


def page() -> str:
    """The whole page."""
    lines = [_PAGE]
    for part in PARTS:
        share = f"It has {part.share:g} s of a whole day; below {part.least:g} s it isn't begun."
        lines.append(f"## {part.name}\n\n{part.about[0].upper()}{part.about[1:]}. {share}\n")
        for one in part.questions:
            word = "must be" if one.must else "assumed"
            assumed = "" if one.expected is None else f", {word} {str(one.expected).lower()}"
            lines.append(item(f"`{one.name}`, {one.unit}{assumed}: {one.asks}").rstrip("\n"))
        lines.append("")
    return "\n".join(lines)
