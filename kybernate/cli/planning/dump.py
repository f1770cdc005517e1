"""`kybernate dump`: the extender's ledger, to keep or to replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import orjson

from kybernate.cli.planning.extender_link import ask, extender_options

if TYPE_CHECKING:
    from typing import BinaryIO

LIMIT_S = 60.0
"""Seconds that the extender gets: thousands of nodes are megabytes."""


@click.command("dump")
@click.option(
    "-o", "--output", type=click.File("wb"), default="-", help="Where to; stdout by default."
)
@extender_options
def command(output: BinaryIO, **where: Any) -> None:
    """Write the extender's ledger as JSON: nodes, who holds which seats, pods that wait.

    `kybernate replay` says what would be decided with it. It names pods and nodes, and nothing of
    what they run.
    """
    found = ask(where["extender"], where["tls_dir"], "/dump", LIMIT_S)
    output.write(orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE))
