"""`kyb-registry`: the registry, and what is done with its database."""

from __future__ import annotations

import sys

from kybernate.errors import ConfigError
from kybernate.runtime.load import command
from kybernate.runtime.serve import configure_logging
from kybernate.settings.registry import RegistrySettings


def run(settings: RegistrySettings) -> None:
    """Serve until stopped by a signal."""
    from registry.service import make_server  # noqa: PLC0415 - so that --help needs no gunicorn

    configure_logging(settings.log_level)
    try:
        server = make_server(settings)
    except ConfigError as error:
        sys.exit(f"kyb-registry: {error}")
    server.run()


_OTHERS = ("rebuild", "settle", "unsettle", "kms", "rewrap")
_serve = command(
    RegistrySettings,
    "KYB_REGISTRY",
    run,
    "Says which artifacts exist, where they are, and which pod continues from which. "
    f"Other commands: {', '.join(_OTHERS)}; each has its own --help.",
)


def main() -> None:
    """Serve, unless the first word is another command."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _OTHERS:
        _serve(prog_name="kyb-registry")
    from registry.commands import COMMANDS  # noqa: PLC0415 - they need what serving doesn't

    COMMANDS[name](sys.argv[2:], prog_name=f"kyb-registry {name}")


if __name__ == "__main__":
    main()
