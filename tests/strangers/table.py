"""`python -m tests.strangers.table`: docs/programs.md, from what the tests park."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tests.strangers.programs import STRANGERS

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """\
# What has been parked

Programs that nobody here wrote, of Debian 12 or built by Go, as they are. `make test-strangers`
starts each in a container with its own root below a whole agent, asks it over a connection that
is kept and over new ones, parks it in each tier twice in a row and wakes it by a request. *Whole*
means: the next answer has the next number, from the same server, on the old connection and on a
new one. What can't be saved stays in RAM, and the event `KeptInRam` says why ([what can't be
dumped](criu.md#what-cant-be-dumped)).

This page is generated: `python -m tests.strangers.table >docs/programs.md`.

| program | what | RAM | NVMe | object store |
|---|---|---|---|---|
"""


def page() -> str:
    """All of it."""
    return HEAD + "".join(f"{row}\n" for row in _rows()) + "".join(_remedies())


def _rows() -> Iterator[str]:
    for one in STRANGERS:
        below = "stays in RAM" if one.refused else "whole"
        yield f"| `{one.name}` | {one.is_} | whole | {below} | {below} |"


def _remedies() -> Iterator[str]:
    refused = [one for one in STRANGERS if one.refused]
    if refused:
        yield "\n| stays in RAM | why | what helps |\n|---|---|---|\n"
    for one in refused:
        yield f"| `{one.name}` | {one.refused} | {one.remedy} |\n"


if __name__ == "__main__":
    click.echo(page(), nl=False)
