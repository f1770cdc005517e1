"""One part of the day, in a process of its own: a JSON line for each answer, one for the end."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from tests.gpu.day import NO_GPU
from tests.gpu.here import Here
from tests.gpu.machine import SkippedError, gpus


def main(name: str, seconds: float, rounds: int, known: Path) -> None:
    """Ask what the part asks."""
    signal.signal(signal.SIGTERM, _over)
    until = time.monotonic() + seconds
    try:
        here = Here(tuple(gpus()), until, json.loads(known.read_text()), rounds)
    except SkippedError as error:
        tell(ended=NO_GPU, why=str(error))
        return
    try:
        part = importlib.import_module(f"tests.gpu.parts.{name}")
        for answer, value, says in part.answers(here):
            tell(name=answer, value=_rounded(value), says=says)
    except SkippedError as error:
        tell(ended="skipped", why=str(error))
    except ModuleNotFoundError as error:
        tell(ended="skipped", why=f"{sys.executable} lacks what it needs: {error}")
    except Exception as error:  # noqa: BLE001 - the other parts are asked all the same
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}".strip().splitlines()
        tell(ended="failed", why=" … ".join(dict.fromkeys((said[0], said[-1]))))
    else:
        tell(ended="done", why="")


def tell(**what: Any) -> None:
    """One line; it counts whatever happens afterwards."""
    print(json.dumps(what), flush=True)


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _over(*_: object) -> NoReturn:
    raise SystemExit("the part's time is over")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
