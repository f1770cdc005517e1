"""`kyb-controller`: carries out what objects such as CheckpointRequests ask for."""

from __future__ import annotations

import sys

from kybernate.errors import ConfigError
from kybernate.runtime.load import command
from kybernate.runtime.serve import configure_logging, stop_event
from kybernate.settings.controller import ControllerSettings


def run(settings: ControllerSettings) -> None:
    """Work until stopped by a signal."""
    from controller.service import Service  # noqa: PLC0415 - so that --help needs no Kubernetes

    configure_logging(settings.log_level)
    stopping = stop_event()
    try:
        service = Service(settings)
    except ConfigError as error:
        sys.exit(f"kyb-controller: {error}")
    service.start()
    stopping.wait()
    service.stop()


main = command(
    ControllerSettings,
    "KYB_CONTROLLER",
    run,
    "Has agents do what objects such as CheckpointRequests ask for, and says how far it is.",
)

if __name__ == "__main__":
    main()
