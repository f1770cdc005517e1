"""Histories of the registry's calls judged by Porcupine; the model is porcupine/model.go."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from kybernate.errors import KybernateError
from tests.kit.gobuild import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    Calls = Sequence[dict[str, Any]]

PROGRAM = Program("porcupine", ".", "a checker of histories, from source: some seconds")
why_not, ensure = PROGRAM.why_not, PROGRAM.ensure
OK, ILLEGAL, UNKNOWN = "ok", "illegal", "unknown"
_SEARCH_S = 10
_ALL_S = 600


def judge(histories: Sequence[Calls]) -> list[str]:
    """`ok`, `illegal` or `unknown` (not decided in 10 s) for each history, whose calls are as
    model.go has them. Raises KybernateError."""
    lines = [json.dumps({"id": number, "calls": one}) for number, one in enumerate(histories)]
    run = subprocess.run(
        [str(ensure()), "-limit", f"{_SEARCH_S}s"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=_ALL_S,
        check=False,
    )
    found = [json.loads(line)["verdict"] for line in run.stdout.splitlines()]
    if run.returncode or len(found) != len(lines):
        raise KybernateError(f"the checker of histories ended: {run.stderr.strip()[-500:]}")
    return found
