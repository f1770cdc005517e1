"""`kyb-registry`: the registry."""

from __future__ import annotations

import sys

from kybernate.errors import ConfigError
from kybernate.runtime.load import command
from kybernate.runtime.serve import configure_logging
from kybernate.settings.registry import RegistrySettings


def run(settings: RegistrySettings) -> None:
    """Serve until stopped by a signal."""
    from registry.server import Server  # noqa: PLC0415 - so that --help needs no gunicorn

    configure_logging(settings.log_level)
    try:
        server = Server(settings)
    except ConfigError as error:
        sys.exit(f"kyb-registry: {error}")
    server.run()


main = command(
    RegistrySettings,
    "KYB_REGISTRY",
    run,
    "Says which saved states exist, where they are, and which pod goes on from which.",
)

if __name__ == "__main__":
    main()
