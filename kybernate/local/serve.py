"""`kybernate serve`: one box in one process, from start to end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

import aiohttp

from kybernate.adapters.nvml import Nvml
from kybernate.core.doctor.doctor import OLDEST_DRIVER, parks
from kybernate.core.simulate.hostram import CALLS_HOLD
from kybernate.core.simulate.world import Costs
from kybernate.errors import DriverError, RefusedError
from kybernate.local.engine import Engine
from kybernate.local.folders import native
from kybernate.local.front.serving import Serving
from kybernate.local.ports import Servers
from kybernate.local.reading import specs
from kybernate.local.rights import criu_of, refusal, stays_in_ram
from kybernate.settings.agent import AgentSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.adapters.cuda.driver import CudaHelpers
    from kybernate.api.models import ModelsFile, Tiers
    from kybernate.local.folders import Folders
    from kybernate.local.reading import Source
    from kybernate.types import Gpu

log = logging.getLogger(__name__)

_NVML_LIMIT = 10.0
_TRY = "try Kybernate without a GPU: kybernate serve --simulate"
_WITHOUT = f"mend that, or {_TRY}"
_RESERVE, _SHARE = 512 << 20, 32
"""Of each GPU is given to no model: so many bytes, and no more than one part in so many."""
_IN_TIME_S = Costs().slack
"""Seconds; see the agent's `answer_within_s`."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


async def serve(source: Source, folders: Folders, helpers: CudaHelpers, *, keep: bool) -> None:
    """Serve until SIGTERM or SIGINT. With `keep` models stay for the next start. `source` has been
    read. Raises ConfigError, RefusedError, DriverError, OSError."""
    if (why := refusal()) is not None:
        raise RefusedError(why)
    file = source.file or source.load()
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with aiohttp.ClientSession() as session:
        nvml = Nvml()
        gpus = await devices(nvml)
        settings, servers = _settings(file, folders, gpus), Servers(session)
        engine = Engine(folders, helpers, settings, servers, native("kyb-init"))
        serving = await _begin(engine, file, source.keep)
        try:
            following = asyncio.create_task(_follow(source, engine, serving))
            await stop.wait()
            following.cancel()
            await serving.stop()
        finally:
            await engine.stop(keep=keep)


async def devices(nvml: Nvml) -> tuple[Gpu, ...]:
    """The box's GPUs, one at least, of a driver that parks. Raises RefusedError, DeadlineError."""
    try:
        gpus = await nvml.ask(nvml.devices, _NVML_LIMIT)
        driver, _ = await nvml.ask(nvml.driver_versions, _NVML_LIMIT)
    except DriverError as error:
        raise RefusedError(f"NVIDIA's driver does not answer ({error}): {_WITHOUT}") from error
    if not gpus:
        raise RefusedError(f"this box has no GPU: {_WITHOUT}")
    if not parks(driver):
        raise RefusedError(
            f"NVIDIA's driver {driver} can't park models, {OLDEST_DRIVER} and later can: "
            f"upgrade it to 580 or later, or {_TRY}"
        )
    return gpus


async def _begin(engine: Engine, file: ModelsFile, owned: Callable[[], None]) -> Serving:
    try:
        await engine.start(specs(file), owned)
        serving = Serving(engine, file)
        await serving.start()
    except BaseException:
        await engine.give_up()
        raise
    return serving


async def _follow(source: Source, engine: Engine, serving: Serving) -> None:
    async def changed(file: ModelsFile) -> None:
        serving.take(file)
        await engine.apply(specs(file))

    again = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again.set)
    watching = asyncio.create_task(source.watch(changed))
    try:
        while True:
            await again.wait()
            again.clear()
            await source.reload(changed)
    finally:
        watching.cancel()


def _settings(file: ModelsFile, folders: Folders, gpus: Iterable[Gpu]) -> AgentSettings:
    """The agent's settings, as far as they mean anything on a box."""
    half = os.sysconf("SC_PHYS_PAGES") * _PAGE // 2
    given = {
        "node": "box",
        "state_dir": folders.state,
        "run_dir": folders.run,
        "park_bytes": file.tiers.ram or half,
        "min_residency_s": file.min_loaded,
        "max_wait_s": file.max_wait,
        "answer_within_s": _IN_TIME_S,
        "activity_interval_s": CALLS_HOLD,
        "start_limit_s": file.health_check_timeout,
        "traces": file.traces,
        "reserve_bytes": min([_RESERVE, *(gpu.memory // _SHARE for gpu in gpus)]),
    }
    return AgentSettings.model_validate({**given, **_offloading(file.tiers)})


def _offloading(tiers: Tiers) -> dict[str, object]:
    """The settings by which models leave RAM; none where they stay there."""
    if tiers.nvme is None or stays_in_ram(tiers) is not None:
        return {}
    return {
        "criu": criu_of(tiers),
        "kyb_enter": native("kyb-enter"),
        "nvme_dir": tiers.nvme,
        # A model that has ended begins again: nobody continues from what it was.
        "keep_left_s": 0.0,
        # Nobody notes here which pages the driver takes, and these would have to come first.
        "lazy_restores": False,
    }
