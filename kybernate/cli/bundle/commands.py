"""`kubectl kyb support-bundle`: one file for who is asked for help."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kybernate.cli import version
from kybernate.cli.bundle.archive import Room, write
from kybernate.cli.bundle.pieces import CALL_S, Limits, pieces
from kybernate.cli.cluster.asking import status_line
from kybernate.cli.cluster.link import cluster_options, link_to
from kybernate.cli.output import Listing, Row, human, output_option, plain, show
from kybernate.core.quantity import parse_duration, parse_quantity
from kybernate.errors import ConfigError, KybernateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.adapters.k8s import Api
    from kybernate.cli.bundle.archive import Outcome
    from kybernate.cli.bundle.pieces import Piece, Right

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@click.command("support-bundle")
@click.option("-n", "--namespace", help="Pods, events and objects of this one; else of all.")
@click.option("--since", default="24h", show_default=True, help="How old lines of logs may be.")
@click.option(
    "--max-file", default="8Mi", show_default=True, help="Of each file; of a log its last lines."
)
@click.option("--max-size", default="200Mi", show_default=True, help="Of all, not compressed.")
@click.option("--timeout", default="10m", show_default=True, help="After it nothing else is begun.")
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; without it kyb-support-TIME.tar.gz, here.",
)
@click.option("--dry-run", is_flag=True, help="List what would be taken, and what may not be.")
@output_option
@cluster_options(namespaced=False)
def command(
    *,
    namespace: str | None,
    file: Path | None,
    dry_run: bool,
    output: str,
    **options: Any,
) -> None:
    """Write what a cluster has to say into one file, to give to who is asked for help.

    It has our objects, GPUNodes, pods that may hold seats, events, what `doctor` finds, versions,
    and of the pods in kyb-system logs, readiness and metrics. Secrets are never read; values of
    environment variables, command lines, annotations of others and what looks like a key in any
    text are redacted. Look into it before you give it away. What your account may not read is
    listed with the reason.

    \b
    kubectl kyb support-bundle --dry-run
    kubectl kyb support-bundle --since 2h
    kubectl kyb support-bundle -n shop -f shop.tar.gz
    """
    limits = Limits(_seconds(options["since"], "--since"), _bytes(options, "max_file"))
    room = Room(
        _bytes(options, "max_size"), time.monotonic() + _seconds(options["timeout"], "--timeout")
    )
    api = link_to(options).api
    found, problems = pieces(api, version(), namespace, limits)
    for problem in problems:
        click.echo(f"not to be had: {plain(problem)}", err=True)
    if dry_run:
        show(_would(api, found), output)
        return
    path = file or Path(f"kyb-support-{datetime.now(UTC):%Y%m%dt%H%M%Sz}.tar.gz")
    told = _written(path, found, problems, room)
    show(_listing(told), output)
    sizes = [one.bytes for one in told if one.bytes is not None]
    size = human(sum(sizes))
    click.echo(f"{path}: {len(sizes)} of {len(told)} files, {size} uncompressed", err=True)


def _written(path: Path, found: list[Piece], problems: list[str], room: Room) -> list[Outcome]:
    begun = time.monotonic()
    with status_line() as say:
        number = 0

        def tell(file: str) -> None:
            nonlocal number
            number += 1
            say(plain(f"{number} of {len(found)}: {file}{_rest(begun, number, len(found))}"))

        try:
            return write(path, found, problems, room, tell)
        except OSError as error:
            raise click.ClickException(f"--file {path}: {error.strerror}") from error


def _rest(begun: float, number: int, of: int) -> str:
    """How long the rest takes if it goes as before."""
    spent = time.monotonic() - begun
    return f", about {spent / (number - 1) * (of - number + 1):.0f} s left" if spent > 2 else ""


def _listing(told: Iterable[Outcome]) -> Listing:
    rows = tuple(
        Row(
            one.file,
            {"file": one.file, "bytes": one.bytes, "why": one.why},
            (one.file, "-" if one.bytes is None else human(one.bytes), one.why),
        )
        for one in told
    )
    return Listing(("FILE", "SIZE", "NOT THERE"), 3, rows, "There is nothing to take.")


def _would(api: Api, found: Iterable[Piece]) -> Listing:
    may = cache(lambda right: _may(api, right))
    rows = tuple(
        Row(
            one.file,
            {"file": one.file, "right": str(one.right or ""), "may": may(one.right)},
            (one.file, may(one.right), str(one.right or "")),
        )
        for one in found
    )
    return Listing(("FILE", "MAY", "RIGHT"), 3, rows, "There is nothing to take.")


def _may(api: Api, right: Right | None) -> str:
    """Whether this account has it, as the API server says."""
    if right is None:
        return "yes"
    asked = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "namespace": right.namespace,
    }
    try:
        answer = api.post(_REVIEWS, {"spec": {"resourceAttributes": asked}}, timeout=CALL_S)
    except KybernateError:
        return "unknown"
    return "yes" if (answer.get("status") or {}).get("allowed") is True else "no"


def _seconds(text: str, option: str) -> int:
    seconds = _read(parse_duration, text, option)
    if seconds < 1:
        raise click.BadParameter("write at least 1s", param_hint=option)
    return ceil(seconds)


def _bytes(options: dict[str, Any], name: str) -> int:
    option = "--" + name.replace("_", "-")
    size = _read(parse_quantity, options[name], option)
    if size < 1:
        raise click.BadParameter("write a number of bytes, such as 8Mi", param_hint=option)
    return int(size)


def _read(parse: Callable[[str], float], text: str, option: str) -> float:
    try:
        return parse(text)
    except ConfigError as error:
        raise click.BadParameter(error.problem, param_hint=option) from error
