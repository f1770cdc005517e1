"""kyb-agent: parse, wire, run."""

from __future__ import annotations

import os

# Seats wait for an agent's start, and to look for pydantic's plugins in each installed package is
# an eighth of it; there are none. Not for the whole package: a box's models inherit what it sets.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING

from kybernate.adapters.cuda.driver import CudaHelpers
from kybernate.adapters.kernel.cgroupns import enter_node_cgroups
from kybernate.errors import ConfigError
from kybernate.runtime.load import command
from kybernate.runtime.serve import ProbeServer, configure_logging
from kybernate.settings.agent import AgentSettings
from kybernate.settings.common import host_port
from nodeagent.offload import helper

if TYPE_CHECKING:
    from nodeagent.app.wiring import Agent

_SWITCH_INTERVAL = 0.0005


def run(settings: AgentSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    enter_node_cgroups()  # before there are threads and helpers, which inherit it
    helpers = CudaHelpers(helper.command(settings))  # its slow import runs beside ours
    configure_logging(settings.log_level)
    # Threads write to the API server meanwhile; the loop must not wait 5 ms for each of them.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        asyncio.run(_run(settings, helpers))
    except ConfigError as error:
        sys.exit(f"kyb-agent: {error}")


async def _run(settings: AgentSettings, helpers: CudaHelpers) -> None:
    # What is imported stays. To look through it for garbage, again and again while it grows, takes
    # an eighth of an agent's start, in which seats wait; and each later look would take longer.
    gc.disable()
    from nodeagent.app.wiring import Agent, traced  # noqa: PLC0415 - after the helpers were started

    gc.freeze()
    gc.enable()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    agent = Agent(settings, helpers)
    spans = traced(agent.node, settings)
    probes = _probes(settings, agent)
    probes.start()
    try:
        await agent.run(stop)
    finally:
        probes.stop()
        if spans is not None:
            await asyncio.to_thread(spans.close)


def _probes(settings: AgentSettings, agent: Agent) -> ProbeServer:
    return ProbeServer(*host_port(settings.probe_listen), agent.not_ready)


def main() -> None:
    """The console script `kyb-agent`."""
    command(AgentSettings, "KYB_AGENT", run, "Own the seats of this node's GPUs.")()


if __name__ == "__main__":
    main()
