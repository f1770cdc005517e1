"""Completion of command lines: the shell's script, kubectl's call for a plugin, names of pods."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from kybernate import keys
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kybernate.cli.cluster.link import Link, Source

_SHELLS = ("bash", "zsh", "fish")
_LIMIT_S = 2.0
_NO_FILES = 4
"""cobra's word to kubectl: complete no names of files."""


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete the words of this command.

    kubectl completes those of `kubectl kyb` by itself, if kubectl_complete-kyb is on the PATH.

    \b
    bash   echo 'eval "$(kybernate completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(kybernate completion zsh)"' >> ~/.zshrc
    fish   mkdir -p ~/.config/fish/completions
           kybernate completion fish > ~/.config/fish/completions/kybernate.fish
    """
    root, name = ctx.find_root(), "kybernate"
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the choice has click's own shells alone
    click.echo(kind(root.command, {}, name, f"_{name.upper()}_COMPLETE").source())


def for_kubectl(main: click.Command, words: Sequence[str]) -> list[str]:
    """What kubectl asks of `kubectl_complete-kyb WORD...`; the last word is to be completed."""
    *before, last = list(words) or [""]
    found = ShellComplete(main, {}, "kubectl-kyb", "").get_completions(before, last)
    lines = [f"{one.value}\t{one.help}" if one.help else one.value for one in found]
    return [*lines, f":{_NO_FILES}"]


def pod_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The pods of the namespace that hold seats; none where no API server answers soon."""
    del param
    return _names(ctx, lambda link: link.pods(), incomplete)


def node_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The nodes that have GPUNodes; none where no API server answers soon."""
    from kybernate.cli.cluster.link import NODES  # noqa: PLC0415 - each is used by the other

    del param
    return _names(ctx, lambda _: NODES, incomplete)


def pin_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `unpin` takes: the pods of pins, and tpl/NAME of other TierPlacements, also those
    of models and artifacts."""
    del param
    found = _names(ctx, lambda link: link.all_of(keys.TIER_PLACEMENTS_PATH), "")
    names = [str(one.value) for one in found]
    others = ("pin-model-", "pin-artifact-")
    of_pod = [name.startswith("pin-") and not name.startswith(others) for name in names]
    words = (
        name.removeprefix("pin-") if plain else f"tpl/{name}"
        for name, plain in zip(names, of_pod, strict=True)
    )
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _names(
    ctx: click.Context, source_of: Callable[[Link], Source], incomplete: str
) -> list[CompletionItem]:
    from kybernate.cli.cluster.link import link_to  # noqa: PLC0415 - each is used by the other

    options: dict[str, Any] = {"kubeconfig": None, "context": None, "namespace": None, **ctx.params}
    try:
        link = link_to(options)
        source = source_of(link)
        found = link.api.get(source.path, source.params, timeout=_LIMIT_S)
    except (KybernateError, ImportError):
        return []
    names = (str(item["metadata"]["name"]) for item in found.get("items") or ())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def kubectl_complete() -> None:
    """`kubectl_complete-kyb`: kubectl runs it for `kubectl kyb`."""
    from kybernate.cli import main  # noqa: PLC0415 - it imports this module

    click.echo("\n".join(for_kubectl(main, sys.argv[1:])))
