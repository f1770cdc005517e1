"""The `kybernate` command: one group, and a module of this package per subcommand.

Subcommands are imported when they are asked for, so that `kybernate --help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

from kybernate.cli.needs import needs
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMANDS: Mapping[str, str] = {
    "agent": "kybernate.cli.agent.commands",
    "approve": "kybernate.cli.cluster.rebalances:approve",
    "artifacts": "kybernate.cli.artifacts.commands",
    "calibrate": "kybernate.cli.planning.calibrate",
    "clients": "kybernate.cli.clients",
    "clone": "kybernate.cli.cluster.restores:clone",
    "completion": "kybernate.cli.completing",
    "doctor": "kybernate.cli.doctor",
    "drain": "kybernate.cli.cluster.requests:drain",
    "dump": "kybernate.cli.planning.dump",
    "explain": "kybernate.cli.explain",
    "groups": "kybernate.cli.groups",
    "import": "kybernate.cli.importing",
    "models": "kybernate.cli.cluster.models:models",
    "move": "kybernate.cli.cluster.rebalances:move",
    "node": "kybernate.cli.node",
    "park": "kybernate.cli.cluster.requests:park",
    "pin": "kybernate.cli.cluster.pins:pin",
    "pki": "kybernate.cli.pki",
    "plan": "kybernate.cli.planning.plan",
    "policy": "kybernate.cli.cluster.policies:policy",
    "rebalance": "kybernate.cli.planning.rebalance",
    "replay": "kybernate.cli.planning.replay",
    "restore": "kybernate.cli.cluster.restores:restore",
    "seats": "kybernate.cli.cluster.seats:seats",
    "serve": "kybernate.cli.serve",
    "simulate": "kybernate.cli.planning.simulate",
    "snapshot": "kybernate.cli.cluster.requests:snapshot",
    "states": "kybernate.cli.states",
    "support-bundle": "kybernate.cli.bundle.commands",
    "top": "kybernate.cli.cluster.seats:top",
    "unpin": "kybernate.cli.cluster.pins:unpin",
    "wake": "kybernate.cli.cluster.requests:wake",
}

_HELP = """Many pods share a GPU: one is active, the others are parked and wake on a request.

\b
A cluster comes to it in this order:
  kubectl apply -k config/default                      names, accounts, policies
  kybernate pki init --dir DIR                         certificates between our services
  kyb-webhook, kyb-extender, kyb-proxy                 once per cluster
  kybernate clients add NAME --of NAMESPACE            a key for who may ask the proxy
  kyb-agent, kyb-device-plugin                         on every GPU node
  kybernate agent status                               who is active there, who is parked, why
  kubectl apply -f config/samples/two-models.yaml      two models to begin with

\b
From anywhere, through the API server alone (`kubectl kyb` is the same program):
  kubectl kyb top                                      GPUs, tiers, seats
  kubectl kyb seats -n NAMESPACE                       who is awake, who is parked, where
  kubectl kyb park POD                                 and wake, snapshot, restore, clone
  kubectl kyb doctor                                   what is wrong; support-bundle: all of it

\b
One box needs none of that:
  kybernate serve                                      its models, without Kubernetes and root

\b
Every service explains its own settings: kyb-agent --help, and so on. What runs where, and what
each seat does, is in the cluster: kubectl get gpunodes -o yaml
"""


class _Group(click.Group):
    """Finds subcommands by module, and turns our errors into one line and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, _, name = _COMMANDS.get(cmd_name, "").partition(":")
        if not module:
            return None
        try:
            command = getattr(importlib.import_module(module), name or "command")
        except ModuleNotFoundError as error:
            return _unavailable(cmd_name, error)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}: {name or 'command'} is no click command")
        _say_needs(cmd_name, command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KybernateError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                # Who reads has read enough; click ends quietly.
                raise
            said = error.strerror or str(error)
            raise click.ClickException(
                f"{error.filename}: {said}" if error.filename else said
            ) from error


def _say_needs(path: str, command: click.Command) -> None:
    command.epilog = needs(path)
    for name, one in command.commands.items() if isinstance(command, click.Group) else ():
        _say_needs(f"{path} {name}", one)


def _unavailable(name: str, error: ModuleNotFoundError) -> click.Command:
    """Stands in for a subcommand whose packages are not installed, as those of nodes may be."""

    def refuse() -> None:
        raise click.ClickException(f"{error}; install kybernate with its extras")

    return click.Command(name, callback=refuse, help=f"Not available here: {error}.")


def version() -> str:
    """The version of this program."""
    try:
        return metadata.version("kybernate")
    except metadata.PackageNotFoundError:
        return "not installed (run from its sources)"


@click.group(cls=_Group, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="kybernate")
def main() -> None:
    """The group; `begin` is the console scripts' entry point."""


def begin() -> None:
    """`kybernate`; or, where kubectl runs it as its plugin, `kubectl kyb`."""
    plugin = sys.argv[0].rpartition("/")[2] == "kubectl-kyb"
    main(prog_name="kubectl kyb" if plugin else "kybernate")
