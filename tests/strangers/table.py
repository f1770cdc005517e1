"""`python -m tests.strangers.table`: docs/reference/programs.md, from what the last whole run has
shown.

With `--keep` the records of the run that just ended are kept first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kybernate.errors import KybernateError
from tests.pages import item
from tests.strangers import seen
from tests.strangers.programs import STRANGERS
from tests.strangers.rig import TIERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.types import Tier
    from tests.strangers.programs import Stranger

HEAD = """\
# What has been parked

Programs that nobody here wrote, as Debian and PyPI have them or Go builds them. `make
test-strangers` starts each in a container with its own root below a whole agent, and asks it over
a connection that is kept and over new ones. Each is parked in each tier twice in a row and woken
by a request.

*Whole* means: the next answer has the next number, from the same server, on the old connection and
on a new one. The seconds are those until the first answer on the old connection, the slower of
two, with eight programs side by side on two busy cores. The kernel drops what a client sends
meanwhile; the client sends it again after 0.2, 0.4, 0.8 … s. A program that can't be dumped stays
in RAM, and the event `KeptInRam` says why ([what can't be
dumped](../concepts/criu.md#what-cant-be-dumped)).

A whole run of `make test-strangers` renews this page.

| program | version | RAM | NVMe | object store |
|---|---|---|---|---|
"""


def page(records: Mapping[str, seen.Seen]) -> str:
    """All of it. Raises KeyError for a program that no whole run has parked."""
    rows = [_row(one, records[one.name]) for one in STRANGERS]
    what = [item(f"`{one.name}`: {one.is_}") for one in STRANGERS]
    return "".join([HEAD, *rows, "\n## What they are\n\n", *what, *_remedies(records)])


def _row(one: Stranger, shown: seen.Seen) -> str:
    assert bool(one.refused) is bool(shown.refused), f"{one.name} was another in the last whole run"
    tiers = [_tier(shown, name) for name in TIERS.values()]
    return f"| `{one.name}` | {shown.version} | {' | '.join(tiers)} |\n"


def _tier(shown: seen.Seen, name: Tier) -> str:
    at = shown.answered_s.get(name)
    return "stays in RAM" if at is None else f"whole, {at:.2f} s"


def _remedies(records: Mapping[str, seen.Seen]) -> Iterator[str]:
    refused = [one for one in STRANGERS if one.refused]
    if refused:
        yield "\n## What stays in RAM\n\n"
    for one in refused:
        yield item(f"`{one.name}`", f"told: {records[one.name].refused}", f"remedy: {one.remedy}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--keep", is_flag=True, help="Keep the records of the run that just ended.")
def main(keep: bool) -> None:
    """Print the page."""
    if keep:
        try:
            seen.keep([one.name for one in STRANGERS])
        except KybernateError as error:
            raise click.ClickException(str(error)) from error
    click.echo(page(seen.kept()), nl=False)


if __name__ == "__main__":
    main()
