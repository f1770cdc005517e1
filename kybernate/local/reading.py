"""From models.yaml to what the box runs, at first and whenever the file changes."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import field
from itertools import pairwise
from typing import TYPE_CHECKING

from kybernate.api.models import read, without
from kybernate.api.turns import ALWAYS
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, KybernateError
from kybernate.local.rights import stays_in_ram
from kybernate.local.specs import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from kybernate.api.models import Model, ModelsFile
    from kybernate.local.folders import Numbers

log = logging.getLogger(__name__)

_EVERY = 1.0
_CONTAINERS = frozenset({"docker", "docker-compose", "podman", "nerdctl"})
_RUNS = frozenset({"run", "start", "exec", "compose", "container", "up"})
"""Words that follow these where a container is run, also behind sudo, env or a shell's -c."""


@dataclass(slots=True)
class Source:
    """The file at `path`. `file`: as it counts now. `ports` keeps those that models were given, so
    that models keep them, and with them their processes, when others come and go."""

    path: Path
    ports: Numbers
    file: ModelsFile | None = None
    _given: dict[str, int] = field(default_factory=dict)
    _stamp: tuple[int, int, int] | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def load(self) -> ModelsFile:
        """Read it, without models that can't be run here. Raises ConfigError; then the last one
        counts."""
        self._stamp = self._look()
        try:
            text = self.path.read_text("utf-8")
        except OSError as error:
            raise ConfigError(str(self.path), f"can't be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(str(self.path), f"is not UTF-8, at byte {error.start}") from error
        found = read(text, os.environ, self._given or self.ports.read())
        for warning in (*found.warnings, *unmet(found.file)):
            log.warning("%s", warning)
        self._given |= found.ports
        self.file = without(found.file, _refused(found.file))
        return self.file

    async def watch(self, changed: Callable[[ModelsFile], Awaitable[None]]) -> None:
        """Tell of each change of it that can be used, for ever."""
        while True:
            await asyncio.sleep(_EVERY)
            if self._look() != self._stamp:
                await self.reload(changed)

    async def reload(self, changed: Callable[[ModelsFile], Awaitable[None]]) -> None:
        """Read it again, one call after the other; what can't be used is told in the log."""
        async with self._turn:
            try:
                file = self.load()
                self.keep()
                await changed(file)
            except ConfigError as error:
                log.error("%s; the models stay as they are", error)
            except (KybernateError, OSError, ValueError) as error:
                log.error("not all of %s counts: %s; change it once more", self.path, error)
            else:
                log.info("%s was read again", self.path)

    def keep(self) -> None:
        """Write the ports down, once the box is this process's: another's are not to be changed."""
        self.ports.write(self._given)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _refused(file: ModelsFile) -> set[str]:
    """Models that can't be run here, each with a line in the log: all others are served."""
    refused = set()
    for name, model in file.models.items():
        try:
            check(name, model)
        except ConfigError as error:
            log.error("%s; this model is left out", error)
            refused.add(name)
    return refused


def check(name: str, model: Model) -> None:
    """Whether a model can be run here. Raises ConfigError."""
    if (program := _container(model.argv)) is not None:
        raise ConfigError(
            f"models.{name}.cmd",
            f"{program} has the container's processes run by its service, where this process "
            "can neither park nor find them; write the server's own command, such as vllm serve",
        )


def _container(argv: Sequence[str]) -> str | None:
    """The word by which a command has a service run a container, if it does."""
    if os.path.basename(argv[0]) in _CONTAINERS:
        return argv[0]
    words = [word for argument in argv for word in argument.split()]
    pairs = pairwise(words)
    return next((a for a, b in pairs if os.path.basename(a) in _CONTAINERS and b in _RUNS), None)


def unmet(file: ModelsFile) -> Iterator[str]:
    """What it asks for and this box doesn't do, a sentence for each key."""
    if (why := stays_in_ram(file.tiers)) is not None:
        yield why
    for name, model in file.models.items():
        if model.idle.ram and not file.tiers.nvme:
            yield f"models.{name}.idle.ram: parked models stay in RAM: tiers.nvme names no folder"
        if model.cmd_stop:
            yield f"models.{name}.cmdStop: is not run; SIGTERM ends the model, then SIGKILL"
    yield from _unmet_groups(file)


def _unmet_groups(file: ModelsFile) -> Iterator[str]:
    for name, group in file.groups.items():
        if group.persistent and group.swap:
            yield f"groups.{name}.persistent: pins the members with swap: false alone"
        if group.swap:
            yield f"groups.{name}.swap: members that fit beside each other are active together"
        unsaid = [name for name in group.members if file.models[name].vram is None]
        if not group.swap and unsaid and len(group.members) > 1:
            said = "without vram a model has its GPUs to itself until its first park measures it"
            yield f"groups.{name}.swap: {said}: state it for {', '.join(unsaid)}"
        if group.exclusive:
            yield f"groups.{name}.exclusive: others leave only where their GPU memory is needed"


def specs(file: ModelsFile) -> list[ModelSpec]:
    """What it has the box run."""
    preload, idle = file.hooks.on_startup.preload, file.hooks.on_idle.wake
    turning = {name for name, one in file.models.items() if one.turn == ALWAYS or name in idle}
    return [
        ModelSpec(
            name=name,
            argv=model.argv,
            address=model.address,
            env=tuple(model.env),
            base=model.base,
            cooperate=model.cooperate or "",
            check="" if model.check_endpoint == "none" else model.base + model.check_endpoint,
            gpus=model.devices,
            vram=model.vram,
            ttl=max(0.0, model.ttl),
            ram_idle=model.idle.ram,
            grace=model.unload_timeout or file.unload_timeout,
            start_limit=model.health_check_timeout or file.health_check_timeout,
            preload=name in preload or name in turning,
            weight=float(model.weight) if name in turning else None,
            ready_within=model.ready_within,
            pin=model.pin,
            priority=file.priority.get(name, 0),
            secrets=frozenset(file.api_keys),
        )
        for name, model in file.models.items()
    ]
