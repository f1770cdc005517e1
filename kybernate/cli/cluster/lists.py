"""Lists of what a cluster has, for people and programs: once, or followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kybernate.cli.cluster.link import cluster_options, listed, watched
from kybernate.cli.options import together
from kybernate.cli.output import follow, output_option, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kybernate.cli.cluster.link import Link, Source
    from kybernate.cli.output import Listing

    Json = dict[str, Any]

watch_option = click.option(
    "-w", "--watch", is_flag=True, help="Follow what changes, until Ctrl-C."
)


list_options = together(
    click.option("-A", "--all-namespaces", is_flag=True, help="Of all namespaces."),
    output_option,
    watch_option,
    cluster_options(),
)
"""The options of lists of a namespace's objects, or of all namespaces'."""


def tell(
    link: Link,
    sources: Sequence[Source],
    told: Callable[[tuple[list[Json], ...]], Listing],
    output: str,
    *,
    watch: bool,
) -> None:
    """Print what is `told` of the objects of these sources: once, or after each change."""
    if not watch:
        show(told(tuple(listed(link.api, source) for source in sources)), output)
        return
    follow((told(found) for found in until_stopped(watched(link.api, sources))), output)


def until_stopped(states: Iterable[Any]) -> Iterator[Any]:
    """The states until Ctrl-C."""
    try:
        yield from states
    except KeyboardInterrupt:
        return
