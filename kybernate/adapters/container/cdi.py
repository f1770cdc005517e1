"""Container Device Interface files: what a seat's container gets from the host.

A seat's specification is composed of the vendor's own one (kind nvidia.com/gpu, as nvidia-ctk
writes it): its common edits and those of exactly the seat's GPUs, plus the seat's environment and
mounts. The vendor's hooks are kept as they are. One file per device ID, whole or absent.

For a runtime without CDI there is a folder per device ID instead, with a link for each mount: the
kubelet names these links long before it is known which pod has the ID, and the runtime follows them
when it makes the container.

With a `DeviceDoor` the seat's file names its devices by number, and the container can't open them
until `release` lets it, when its turn comes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from kybernate import keys
from kybernate.adapters.container.openings import Openings
from kybernate.errors import DeadlineError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from kybernate.ports import SeatSpec
    from kybernate.types import Gpu

    Json = dict[str, Any]
    Signature = tuple[tuple[str, int, int, int], ...]

log = logging.getLogger(__name__)

DEFAULT_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where vendors put their specifications; of two devices of one name the last one counts."""

DEFAULT_LINKS = Path(keys.SEAT_SOCKET_DIR) / "ids"

_PREFIX = "kyb-"
_LINKS = {keys.SEAT_SOCKET_DIR: keys.ID_SOCKETS, keys.KYB_INIT_PATH: keys.ID_KYB_INIT}
_SUFFIXES = frozenset({".json", ".yaml", ".yml"})
_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "bind", "rprivate")
_MIN_VERSION = "0.5.0"
_SHUT = "m"
"""What a container may do with a device before its turn: make its node, and not open it."""

_IDENTITY: Mapping[str, Callable[[Any], object]] = {
    "env": lambda item: item.partition("=")[0],
    "deviceNodes": lambda item: item.get("path"),
    "mounts": lambda item: item.get("containerPath"),
}
"""What makes two items of a list the same thing; in other lists only equal items are."""


class DeviceDoor(Protocol):
    """Who keeps containers from their devices; `kybernate.adapters.devices` does."""

    @property
    def born_shut(self) -> bool:
        """Whether a container that the runtime lets open nothing can be let to it later."""

    def shut(self, uid: str, devices: Iterable[tuple[int, int]]) -> str:
        """Keep the pod from these character devices (major and minor), before its container is
        made; why that can't be done, or empty. Idempotent. Blocks. Raises OSError."""

    def lets(self, init: int, devices: Iterable[tuple[int, int]]) -> bool:
        """Whether the container of this process may open them already, as far as the kernel tells
        anybody, and at once. Raises NotFoundError if the process is gone."""

    def open(
        self, init: int, devices: Iterable[tuple[int, int]], is_there: Callable[[], bool]
    ) -> Callable[[], None]:
        """Let the container of this process open these character devices from now on. Idempotent.
        Blocks. Returns what shuts again what it opened, which blocks and raises OSError. `is_there`
        is asked once the container is known, before anything is let to it. Raises NotFoundError if
        the process is gone, OSError, and then nothing is opened."""

    def close(
        self, init: int, devices: Iterable[tuple[int, int]], is_there: Callable[[], bool]
    ) -> None:
        """Keep the container of this process from them again. As `open`."""


def compose(vendor: Sequence[Mapping[str, Any]], device_id: str, spec: SeatSpec) -> Json:
    """The seat's specification, from the vendor's (already parsed) and what the seat adds.

    Raises RefusedError if the vendor's specifications don't know one of the GPUs.
    """
    edits = [source.get("containerEdits", {}) for source in vendor]
    edits += [_gpu_edits(vendor, gpu) for gpu in spec.gpus]
    edits.append(
        {
            "env": [f"{name}={value}" for name, value in spec.env.items()],
            "mounts": [
                {"hostPath": host, "containerPath": inside, "options": list(_MOUNT_OPTIONS)}
                for inside, host in spec.mounts.items()
            ],
        }
    )
    versions = [str(source.get("cdiVersion", _MIN_VERSION)) for source in vendor]
    return {
        "cdiVersion": max([_MIN_VERSION, *versions], key=_version_key),
        "kind": keys.CDI_KIND,
        "devices": [{"name": device_id, "containerEdits": merge(edits)}],
    }


def merge(edits: Iterable[Mapping[str, Any]]) -> Json:
    """Container edits in order, without duplicates.

    A later item replaces an earlier one of the same variable, device path or mount point, in the
    earlier one's place.
    """
    merged: Json = {}
    for edit in edits:
        for name, value in edit.items():
            if not isinstance(value, list):
                merged[name] = value
                continue
            identity = _IDENTITY.get(name, orjson.dumps)
            items = {identity(item): item for item in merged.get(name, [])}
            items.update((identity(item), item) for item in value)
            merged[name] = list(items.values())
    return {name: value for name, value in merged.items() if value != []}


def _gpu_edits(vendor: Sequence[Mapping[str, Any]], gpu: Gpu) -> Mapping[str, Any]:
    # By UUID first: an index means another GPU once one has fallen off the bus.
    for name in (gpu.uuid, str(gpu.index)):
        for source in reversed(vendor):
            for device in source.get("devices", []):
                if device.get("name") == name:
                    edits: Mapping[str, Any] = device.get("containerEdits", {})
                    return edits
    raise RefusedError(
        f"The node's CDI specification of kind {keys.VENDOR_CDI_KIND} has no device for GPU "
        f"{gpu.index} ({gpu.uuid}): generate it again with `nvidia-ctk cdi generate`."
    )


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def numbered(spec: Json, *, born_shut: bool) -> Json:
    """The specification with each device that can be seen here by number, and not to be opened if
    its container is to be born so."""
    for device in spec["devices"]:
        edits = device["containerEdits"]
        if "deviceNodes" in edits:
            nodes = [_numbered(node) for node in edits["deviceNodes"]]
            more = {"permissions": _SHUT} if born_shut else {}
            edits["deviceNodes"] = [{**one, **(more if "major" in one else {})} for one in nodes]
    return spec


def _numbers(spec: Json) -> list[tuple[int, int]]:
    """Those of the devices that were numbered. Raises ValueError for one that isn't that of its
    path: then either is wrong, and it may be another seat's."""
    edits = [device["containerEdits"] for device in spec["devices"]]
    nodes = [node for one in edits for node in one.get("deviceNodes", [])]
    found = [node for node in nodes if {"type", "major", "minor"} & node.keys()]
    for node in found:
        if _numbered(node) != node:
            raise ValueError(f"{node.get('path')} is not the device that its number says")
    return [(node["major"], node["minor"]) for node in found if node["type"] == "c"]


def _numbered(node: Mapping[str, Any]) -> Mapping[str, Any]:
    path = str(node.get("hostPath") or node.get("path"))
    try:
        found = os.stat(path)
    except OSError as error:
        log.warning("%s can be opened before its seat's turn: %s", path, error)
        return node
    if not stat.S_ISCHR(found.st_mode):
        return node
    number = {"major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
    return {**node, "type": "c", **number}


class CdiSpecs:
    """Implements `kybernate.ports.Specs`: our files in `out`, the vendor's in `vendor_dirs`.

    Folders of device IDs, for runtimes without CDI, are in `links`. Without a `door` containers may
    open their devices from the start.
    """

    def __init__(
        self,
        out: Path,
        vendor_dirs: Sequence[Path] = DEFAULT_DIRS,
        links: Path = DEFAULT_LINKS,
        door: DeviceDoor | None = None,
    ) -> None:
        self._door = door
        self._openings = Openings()
        self._out = out
        self._links = links
        self._dirs = tuple(vendor_dirs)
        self._parsed: tuple[Signature, tuple[Json, ...]] = ((), ())

    def write(self, device_id: str, spec: SeatSpec) -> str:
        """Write or replace the device's file, synced to the disk. Why `spec.pod` can open its GPUs
        before its turn all the same, or empty.

        Raises RetryableError if the vendor's specification isn't there or can't be read,
        RefusedError if it lacks one of the GPUs.
        """
        if not spec.cdi:
            self._link(device_id, spec.mounts)
            return ""
        made, open_why = compose(self._vendor(), device_id, spec), ""
        if self._door is not None:
            made = numbered(made, born_shut=self._door.born_shut)
            if spec.pod:
                open_why = self._door.shut(spec.pod, _numbers(made))
        content = orjson.dumps(made, option=orjson.OPT_INDENT_2)
        target = self._file(device_id)
        self._out.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Not a name that CDI reads.
        temporary = target.with_suffix(".json.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
        return open_why

    def remove(self, device_id: str) -> None:
        """Remove the device's file or folder, if there is one."""
        self._file(device_id).unlink(missing_ok=True)
        folder = self._links / device_id
        for name in _LINKS.values():
            (folder / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            folder.rmdir()

    async def release(
        self,
        device_id: str,
        init: int,
        is_there: Callable[[], bool],
        deadline: float,
        *,
        stays: bool = False,
    ) -> None:
        """Let the container of this process open what the device's file shuts. Idempotent. A thread
        does what takes rights; a wake waits for none where all is let already.

        Raises RetryableError if the file isn't what was written: it is written again for the next
        container. DeadlineError: what the kernel does later is undone, unless it `stays`.
        """
        door, numbers = self._door, self._devices(device_id)
        if door is None or numbers is None:
            return
        async with _within(deadline, f"let process {init} to its devices"):
            await self._openings.settled(device_id)
            if not (door.lets(init, numbers) and is_there()):
                opens = partial(door.open, init, numbers, is_there)
                await self._openings.open(device_id, opens, stays=stays)

    async def shut(
        self, device_id: str, init: int, is_there: Callable[[], bool], deadline: float
    ) -> None:
        """Keep the container of this process from what the device's file shuts again. Idempotent.
        Raises as `release`."""
        door, numbers = self._door, self._devices(device_id)
        if door is None or numbers is None:
            return
        async with _within(deadline, f"keep process {init} from its devices"):
            shuts = partial(_shuts, partial(door.close, init, numbers, is_there))
            await self._openings.open(device_id, shuts, stays=True)

    def _devices(self, device_id: str) -> list[tuple[int, int]] | None:
        """The devices that the file shuts, None without one. Raises RetryableError for another file
        than ours."""
        path = self._file(device_id)
        try:
            return _numbers(orjson.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RetryableError(
                f"{path} was changed where it lies ({error}): its container may open no GPU; "
                "restart it, and the file is written again"
            ) from error

    def ids(self) -> frozenset[str]:
        """Device IDs that have a file or a folder."""
        files = self._out.glob(f"{_PREFIX}*.json")
        return frozenset(
            [path.stem.removeprefix(_PREFIX) for path in files]
            + [path.name for path in self._links.glob("*/")]
        )

    def _link(self, device_id: str, mounts: Mapping[str, str]) -> None:
        """Lead the mounts of an ID to where they belong; each link is the old or the new one."""
        self._file(device_id)  # refuses an ID that is a path
        folder = self._links / device_id
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for inside, name in _LINKS.items():
            fresh = folder / f".{name}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(mounts[inside])
            fresh.replace(folder / name)

    def _file(self, device_id: str) -> Path:
        if "/" in device_id or not device_id:
            raise RefusedError(f"{device_id!r} is no device ID: it would name a path.")
        return self._out / f"{_PREFIX}{device_id}.json"

    def _vendor(self) -> tuple[Json, ...]:
        files = [path for folder in self._dirs for path in _candidates(folder)]
        signature = tuple(_signature(path) for path in files)
        if signature != self._parsed[0]:
            found = [_parse(path) for path in files]
            self._parsed = (
                signature,
                tuple(spec for spec in found if spec.get("kind") == keys.VENDOR_CDI_KIND),
            )
        if not self._parsed[1]:
            folders = ", ".join(map(str, self._dirs))
            raise RetryableError(
                f"No CDI specification of kind {keys.VENDOR_CDI_KIND} in {folders}: install the "
                "NVIDIA container toolkit, or run `nvidia-ctk cdi generate`."
            )
        return self._parsed[1]


@asynccontextmanager
async def _within(deadline: float, what: str) -> AsyncIterator[None]:
    """Raises DeadlineError."""
    try:
        async with asyncio.timeout(deadline):
            yield
    except TimeoutError as error:
        raise DeadlineError(f"the kernel did not {what} within {deadline:g} s") from error


def _shuts(close: Callable[[], None]) -> Callable[[], None]:
    """As an opening: nothing of it is ever undone."""
    close()
    return close


def _candidates(folder: Path) -> list[Path]:
    try:
        return sorted(
            path
            for path in folder.iterdir()
            if path.suffix in _SUFFIXES and not path.name.startswith(_PREFIX)
        )
    except FileNotFoundError:
        return []


def _signature(path: Path) -> tuple[str, int, int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (str(path), 0, 0, 0)
    return (str(path), found.st_ino, found.st_size, found.st_mtime_ns)


def _parse(path: Path) -> Json:
    """The file's content; {} with a log line if it is gone, or no specification."""
    try:
        text = path.read_text()
        content = orjson.loads(text) if path.suffix == ".json" else _of_yaml(text)
    except (OSError, ValueError) as error:
        log.warning("The CDI specification %s can't be read and is left out: %s", path, error)
        return {}
    return content if isinstance(content, dict) else {}


def _of_yaml(text: str) -> Any:
    """Raises ValueError."""
    import yaml  # noqa: PLC0415 - slow, and seats wait for an agent's start

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
