"""docs/reference/cli.md: what `--help` of each command says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kybernate.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH = 100
_HEAD = """# Commands

Generated from `kybernate/cli` by `make generated`: what `--help` of each command says. `kybernate`
and `kubectl kyb` are one program; [how to install it](../how-to/install/commands.md). Those that
ask the API server read `--kubeconfig`, `--context` and `-n` as kubectl does. See also
[roles and rights](rights.md#people), and [what becomes of requests](../concepts/requests.md).
"""


def page() -> str:
    """The page, whole."""
    settings: dict[str, Any] = {**main.context_settings, "terminal_width": _WIDTH}
    top = click.Context(main, info_name="kybernate", max_content_width=_WIDTH, **settings)
    told = (f"## {one.command_path}\n\n```text\n{_help(one)}\n```\n" for one in _every(top))
    return "\n".join([_HEAD, *told])


def _every(context: click.Context) -> Iterator[click.Context]:
    yield context
    group = context.command
    for name in group.list_commands(context) if isinstance(group, click.Group) else ():
        command = group.get_command(context, name)
        assert command
        # A test that has called the command alone left it the options of that call.
        vars(command)["_help_option"] = None
        yield from _every(click.Context(command, context, name))


def _help(context: click.Context) -> str:
    return "\n".join(line.rstrip() for line in context.get_help().splitlines())
