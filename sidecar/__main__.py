"""`python -m sidecar`: parse, wire, run."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from sidecar import hints
from sidecar.engines import Engine
from sidecar.link import Link
from sidecar.options import Options, UsageError, parse
from sidecar.server import Listeners

if TYPE_CHECKING:
    from collections.abc import Callable


def _ignore(phase: str, seconds: float) -> None:
    """Nobody cooperates, so nobody is asked."""


def _link(options: Options) -> Link:
    if options.engine == "none":
        return Link(options.socket, options.engine, _ignore)
    engine = Engine(options.engine, options.engine_port)
    asked: Callable[[str, float], None] = engine.on_cooperate
    link = Link(options.socket, options.engine, asked)
    engine.serve(link)
    return link


def _warm_up(text: str) -> int:
    from sidecar import warmup  # noqa: PLC0415 - its HTTP client is large, and seldom needed

    try:
        warmup.run(warmup.read(text))
    except warmup.ColdError as error:
        sys.stderr.write(f"kyb-sidecar: {error}\n")
    return 1


def main() -> int:
    """Run until the pod ends."""
    # Process 1 of a container gets no signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        options = parse(sys.argv[1:])
        if options.warm_up:
            return _warm_up(options.warm_up)
        link = _link(options)
        link.start()
        hints.start(link)
        Listeners(options.probes, link).serve()
    except (UsageError, OSError) as error:
        sys.stderr.write(f"kyb-sidecar: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
