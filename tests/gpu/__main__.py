"""Ask a real driver, or the simulated one, within the time; pytest isn't needed."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu import luggage
from tests.gpu.day import LIMIT, REPOSITORY, adopt_orphans, ask, report, run
from tests.gpu.questions import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = "256MiB"


def main() -> int:
    """The exit status is 1 if a part failed, or an answer that must hold does not; without a GPU it
    is 0, and that is said loudly."""
    options = _options()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before its time"))
    luggage.use()
    adopt_orphans()
    parts = [part for part in PARTS if not options.only or part.name in options.only]
    with _simulated() if options.simulate else contextlib.nullcontext():
        # Whoever ends this before its time has what was answered by then.
        for found in ask(partial(run, options.rounds), parts, options.seconds):
            told = report(found, options.seconds, time.monotonic() - began)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(told, indent=1) + "\n")
    if told["skipped"]:
        print(f"SKIPPED: nothing was asked of a real driver: {told['skipped']}", file=sys.stderr)
    for line in told["failed"]:
        print(f"FAILED  {line}", file=sys.stderr)
    print(json.dumps(told), flush=True)
    return 1 if told["failed"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    names = [part.name for part in PARTS]
    out = Path(os.environ.get("OUT") or REPOSITORY / "build") / "test-gpu.json"
    parser.add_argument("--seconds", type=float, default=LIMIT, help="of the whole day")
    parser.add_argument("--rounds", type=int, default=1 << 30, help="at most, of what is repeated")
    parser.add_argument("--only", nargs="+", choices=names, help="these parts and no others")
    parser.add_argument("--simulate", action="store_true", help="ask the simulated driver")
    parser.add_argument("--out", type=Path, default=out, help="the file for the JSON")
    return parser.parse_args()


@contextlib.contextmanager
def _simulated() -> Iterator[None]:
    """Two small GPUs of the simulated driver, for the processes that are started meanwhile."""
    from kybernate.local.simgpu.folder import install  # noqa: PLC0415 - not needed on a GPU
    from kybernate.local.simgpu.spec import parse  # noqa: PLC0415 - ditto
    from tests.simgpu.build import build  # noqa: PLC0415 - ditto

    row = {"product": "simulated GPU", "memory": _MEMORY, "count": 2}
    folder = Path(tempfile.mkdtemp(prefix="kyb-gpu-day-", dir="/dev/shm"))
    try:
        libraries = build(REPOSITORY / "build" / "simgpu")
        folder.chmod(0o755)
        install(parse({"name": "day", "gpus": [row], "open": True}), folder, libraries)
        os.environ |= {"SIMGPU_DIR": str(folder), "LD_LIBRARY_PATH": str(folder / "lib")}
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
