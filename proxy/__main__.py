"""`kyb-proxy`: settings in, service up, and a clean end on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys

from kybernate.errors import ConfigError
from kybernate.runtime.load import command
from kybernate.runtime.serve import configure_logging
from kybernate.settings.proxy import ProxySettings
from proxy.service import Service


def main() -> None:
    """Run the proxy."""
    command(ProxySettings, "KYB_PROXY", _run, "Route OpenAI requests to seats, waking them.")()


def _run(settings: ProxySettings) -> None:
    configure_logging(settings.log_level)
    try:
        asyncio.run(_serve(settings))
    except (ConfigError, OSError) as error:
        sys.exit(f"kyb-proxy: {error}")


async def _serve(settings: ProxySettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = Service(settings)
    await service.start()
    gc.freeze()  # What is there now stays: a look for garbage among requests needn't go through it.
    await stop.wait()
    await service.stop()


if __name__ == "__main__":
    main()
