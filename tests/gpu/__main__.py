"""Run the checks on a real driver one after the other; pytest isn't needed."""

from __future__ import annotations

import sys

from tests.gpu.checks import CHECKS, SkippedError, require_gpu


def main() -> int:
    """The exit status is 1 if a check failed; what was skipped is said loudly."""
    try:
        uuid = require_gpu()
    except SkippedError as error:
        print(f"SKIPPED: no test ran on a real driver, since {error}", file=sys.stderr)
        return 0
    failed = 0
    for check in CHECKS:
        try:
            print(f"ok      {check.__name__}: {check(uuid)}", flush=True)
        except SkippedError as error:
            print(f"SKIPPED {check.__name__}: {error}", flush=True)
        except Exception as error:  # noqa: BLE001 - one check's failure must not hide the others
            failed += 1
            print(f"FAILED  {check.__name__}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
