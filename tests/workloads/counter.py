"""Reserve GPU memory and count up in it, one line per step: the count must never start anew.

The counter lives in device memory and in host memory. When they differ, or the memory's content has
changed, state was lost: the program says so and ends with status 1.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import threading

from tests.workloads.device import CudaError, Memory, size


def main() -> int:
    """Count until SIGTERM. The exit status is 1 if state was lost or the GPU refused."""
    options = _options()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        memory = Memory(options.bytes, options.fill, options.seed)
        print(f"holding {options.bytes} bytes on {[gpu.uuid for gpu in memory.gpus]}", flush=True)
        return _count(memory, stop, options.interval, options.steps)
    except CudaError as error:
        print(f"the GPU refused: {error}", file=sys.stderr, flush=True)
        return 1


def _count(memory: Memory, stop: threading.Event, interval: float, steps: int | None) -> int:
    for step in itertools.count(1):
        counter, device, checksum = memory.count()
        print(
            f"counter={counter} device={device} checksum={checksum} pid={os.getpid()}", flush=True
        )
        if checksum != memory.expected or any(value != counter for value in device):
            print(f"state was lost: the checksum should be {memory.expected}", flush=True)
            return 1
        if step == steps or stop.wait(interval):
            return 0
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=size, default=size("2GiB"), help="per GPU; default 2GiB")
    parser.add_argument("--fill", type=size, default=size("1MiB"), help="checked bytes of these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between steps")
    parser.add_argument("--steps", type=int, default=None, help="stop after so many")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
