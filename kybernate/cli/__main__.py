"""`python -m kybernate.cli`: the same as the console script."""

from __future__ import annotations

from kybernate.cli import main

if __name__ == "__main__":
    main(prog_name="kybernate")
