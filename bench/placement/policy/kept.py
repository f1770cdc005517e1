"""What a long bench has found: a JSON line each, at once, so that a second start continues."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ROOT = Path(__file__).parents[3]
_DECIDES = (
    "kybernate/core/simulate",
    "kybernate/core/swap",
    "kybernate/core/tiers",
    "bench/placement/policy",
)

Found = float | None


class Kept:
    """Answers in a file, by the question. Those of other code are none of this one."""

    def __init__(self, path: Path, code: str | None = None) -> None:
        self._path, self._code = path, code or code_of(_ROOT)
        self._lines = _lines_of(path, self._code) if path.exists() else {}

    def answer(self, question: Mapping[str, object], find: Callable[[], Found]) -> Found:
        """What was found before; else what is found now, which is written before it returns."""
        key = json.dumps(question, sort_keys=True)
        if key not in self._lines:
            start = time.process_time()
            found = find()
            cpu_s = round(time.process_time() - start, 2)
            line = {**question, "found": found, "cpu_s": cpu_s, "code": self._code}
            self._lines[key] = line
            # In one piece, since others write, too; first the end of a line that is torn.
            with self._path.open("a") as file:
                file.write("\n" + json.dumps(line))
        answer: Found = self._lines[key]["found"]
        return answer

    def cpu_s(self) -> float:
        """CPU seconds of all answers, of earlier starts as well."""
        return float(sum(line["cpu_s"] for line in self._lines.values()))


def code_of(root: Path) -> str:
    """What names the code that decides."""
    files = sorted(file for folder in _DECIDES for file in (root / folder).glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _lines_of(path: Path, code: str) -> dict[str, dict[str, Any]]:
    found = {}
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # empty, or its writer was ended
            continue
        if line.get("code") == code:
            question = {k: v for k, v in line.items() if k not in ("found", "cpu_s", "code")}
            found[json.dumps(question, sort_keys=True)] = line
    return found
