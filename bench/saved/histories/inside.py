"""`python -m bench.saved.histories.inside DATABASE HISTORIES SEED`: in a namespace of `apart`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from bench.saved.histories.apart import Network
from bench.saved.histories.tried import MEMORY, Bench
from tests.kit.servers import postgresql


def main() -> None:
    """In the namespace."""
    database, histories, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    network = Network()
    with tempfile.TemporaryDirectory(prefix="kyb-apart-", dir=MEMORY) as name:
        bench = Bench(Path(name), seed)
        if database == "sqlite":
            found = bench.cut(network, histories)
        else:
            with postgresql.running() as server:
                found = bench.cut(network, histories, server.dsn)
    said = {one: getattr(found, one) for one in ("histories", "undecided", "calls", "lost", "cuts")}
    said["wrong"] = [(story.namespace, story.calls) for story in found.wrong]
    os.write(1, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main()
