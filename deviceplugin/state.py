"""What the plugin remembers over restarts: GPUs, groups, and the profiles that made them.

A plugin that starts while a GPU is lost would otherwise not know that the GPU exists: groups would
be cut again from the others, with other members under the same names, while pods run in the old.
"""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from deviceplugin.inventory import Inventory
from kybernate.adapters.files import sums
from kybernate.dataclass import dataclass
from kybernate.errors import RefusedError
from kybernate.types import Gpu, Group, Link, of_record

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Remembered:
    """The last inventory, and the text of the profiles file that it was made with."""

    inventory: Inventory
    profiles: str


class StateFile:
    """The file. A write that fails is told once, and the plugin continues without a memory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "inventory.json"
        self._written = b""
        self._failing = False

    def load(self) -> Remembered | None:
        """What was saved last; None if there is nothing, or nothing that can be read. Raises
        RefusedError if a newer plugin wrote it in a version that this one can't read: the file
        stays where it is."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s can't be read: %s; starting without it", self._path, error)
            return None
        try:
            record = orjson.loads(content)
            sums.check(record)
            self._see_version(record["version"])
            return _from_record(record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(
                "%s isn't readable (%s) and is kept as %s; starting without it: a GPU that is lost "
                "now isn't known, so bring it back before pods are placed, or drain this node",
                *(self._path, error, self._keep_aside()),
            )
            return None

    def _see_version(self, written: object) -> None:
        if type(written) is not int or written < 1:
            raise ValueError(f"version {written!r}")
        if written > _VERSION:
            raise RefusedError(
                f"{self._path} has version {written}, and this plugin reads versions up to "
                f"{_VERSION}: run the release that wrote it, or a newer one. Without it a GPU that "
                "is lost now would be forgotten; once this node has all its GPUs (nvidia-smi -L), "
                "the file may be moved away instead"
            )

    def _keep_aside(self) -> Path:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            self._path.replace(aside)
        except OSError as error:
            log.warning("%s can't be kept: %s", self._path, error)
        return aside

    def save(self, remembered: Remembered) -> None:
        """Write it whole, synced, if it says anything new."""
        content = orjson.dumps(sums.summed(_record(remembered)), option=orjson.OPT_INDENT_2)
        if content == self._written:
            return
        try:
            self._write(content)
        except OSError as error:
            if not self._failing:
                log.warning(
                    "%s can't be written: %s; make room or give the plugin a folder that it may "
                    "write to (state_dir), or a GPU that is lost at its next start is forgotten",
                    *(self._path, error),
                )
            self._failing = True
            return
        self._failing = False
        self._written = content

    def _write(self, content: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(self._path)


def _record(remembered: Remembered) -> dict[str, Any]:
    inventory = remembered.inventory
    return {
        "version": _VERSION,
        "profiles": remembered.profiles,
        "strategy": inventory.strategy,
        "driver": [inventory.driver_version, inventory.cuda_version],
        "gpus": [asdict(gpu) for gpu in inventory.gpus],
        "troubles": dict(inventory.troubles),
        "links": [
            [*sorted(pair), kind.name]
            for pair, kind in sorted(inventory.links.items(), key=lambda item: sorted(item[0]))
        ],
        "groups": [asdict(group) for group in inventory.groups],
    }


def _from_record(record: dict[str, Any]) -> Remembered:
    driver, cuda = record["driver"]
    inventory = Inventory(
        tuple(of_record(Gpu, gpu) for gpu in record["gpus"]),
        {frozenset((a, b)): Link[kind] for a, b, kind in record["links"]},
        tuple(of_record(Group, {**one, "gpus": tuple(one["gpus"])}) for one in record["groups"]),
        driver,
        cuda,
        record["strategy"],
        record["troubles"],
    )
    return Remembered(inventory, str(record["profiles"]))
