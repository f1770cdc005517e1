"""`kyb-device-plugin`: offer seats on this node's GPU groups to the kubelet."""

from __future__ import annotations

import click

from deviceplugin.plugin import Plugin
from kybernate.adapters.nvml import Nvml
from kybernate.errors import ConfigError, RefusedError
from kybernate.runtime.load import command
from kybernate.runtime.serve import ProbeServer, configure_logging, stop_event
from kybernate.settings.common import host_port
from kybernate.settings.plugin import PluginSettings


def run(settings: PluginSettings) -> None:
    """Serve until SIGTERM."""
    configure_logging(settings.log_level)
    stop = stop_event()
    try:
        plugin = Plugin(settings, Nvml())
        probes = ProbeServer(*host_port(settings.probe_listen), plugin.not_ready)
        probes.start()
        try:
            plugin.run(stop)
        finally:
            probes.stop()
    except ConfigError as error:
        source = settings.profiles or "default profiles"
        raise click.ClickException(f"{source}: {error}") from error
    except (RefusedError, OSError) as error:
        raise click.ClickException(str(error)) from error


def main() -> None:
    """Entry point of the console script."""
    command(PluginSettings, "KYB_DEVICE_PLUGIN", run, "Offer seats on GPU groups to the kubelet.")()


if __name__ == "__main__":
    main()
