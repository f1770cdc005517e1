"""Settings of the device plugin, and the file that says which seats a node offers.

The file (ConfigMap `kyb-deviceplugin-config`) is the same for local mode. What it says is checked
here as far as that is possible without knowing a node's GPUs; `core.ledger.topology` checks the
rest. Every error names the field as the user wrote it, and all of them are told at once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
)
from pydantic.alias_generators import to_camel

from kybernate import keys
from kybernate.errors import ConfigError
from kybernate.settings.common import Address, Level, Settings
from kybernate.types import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The kernel's limit for a socket's path, less what comes below the kubelet's folder.
_MAX_KUBELET_DIR = 107 - len("/device-plugins/kyb-gpu-128x-seat-012345.sock")
_NAME = r"^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$"


class PluginSettings(Settings):
    """Settings of the device plugin (`KYB_DEVICE_PLUGIN_…`)."""

    profiles: Path | None = Field(
        None, description="YAML file of seat profiles and GPU groups; without it, the defaults."
    )
    node: str = Field("", description="The node's name, for log lines only.")
    kubelet_dir: Path = Field(Path("/var/lib/kubelet"), description="The kubelet's root folder.")
    agent_socket: Path = Field(
        Path(keys.AGENT_SOCKET), description="The node agent's socket (path)."
    )
    probe_listen: Address = Field(
        "127.0.0.1:9821", description="Address of probes and metrics, plain HTTP (host:port)."
    )
    state_dir: Path = Field(
        Path("/var/lib/kyb/plugin"),
        description="Folder in which the plugin remembers the node's GPUs and groups.",
    )
    refresh_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="How often the plugin lists GPUs and their links again (s).",
    )
    health_s: float = Field(
        1.0, gt=0, le=60, description="How often the plugin asks each GPU for its health (s)."
    )
    recovery_s: float = Field(
        4.0,
        ge=0,
        le=600,
        description="A GPU that was unhealthy counts as healthy again once it was found healthy "
        "for this long (s).",
    )
    reload_s: float = Field(
        2.0,
        gt=0,
        le=3600,
        description="How often the plugin checks whether the file of `profiles` has changed (s).",
    )
    boot_grace_s: float = Field(
        60.0,
        ge=0,
        description="After its start, while the driver isn't there yet, the plugin reports the "
        "GPUs that it remembers as healthy for this long (s). A pod that comes meanwhile waits "
        "instead of being failed for good.",
    )
    prestart_deadline_s: float = Field(
        25.0,
        gt=0,
        lt=30,
        description="How long the agent may take to prepare a seat; the kubelet waits for 30 s "
        "(s).",
    )
    relist_s: float = Field(
        3.0,
        gt=0,
        description="The plugin registers again if the kubelet hasn't listed its devices within "
        "this time (s).",
    )
    log_level: Level = Field(
        "INFO", description="Least severity of what is logged: DEBUG, INFO, WARNING or ERROR."
    )

    @field_validator("kubelet_dir")
    @classmethod
    def _short_enough(cls, value: Path) -> Path:
        if len(str(value)) > _MAX_KUBELET_DIR:
            raise ValueError(
                f"longer than {_MAX_KUBELET_DIR} characters: a socket below it couldn't be bound"
            )
        return value


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class ProfileEntry(_Entry):
    """One seat resource. `group_size` in GPUs, `seats_per_group` and `active_slots` in seats."""

    name: Annotated[StrictStr, Field(pattern=_NAME)]
    resource: StrictStr
    group_size: Annotated[StrictInt, Field(ge=1, le=128)]
    seats_per_group: Annotated[StrictInt, Field(ge=1, le=999)]
    active_slots: Annotated[StrictInt, Field(ge=1, le=999)] = 1
    allow_overprovision: StrictBool = True

    def profile(self) -> Profile:
        """The record that the core works with."""
        return Profile(
            self.name,
            self.resource,
            self.group_size,
            self.seats_per_group,
            self.active_slots,
            self.allow_overprovision,
        )


class GroupEntry(_Entry):
    """A group that a person has chosen: its name, its GPUs by index, its own numbers of seats."""

    name: Annotated[StrictStr, Field(pattern=_NAME, max_length=54)]
    gpus: Annotated[tuple[Annotated[StrictInt, Field(ge=0)], ...], Field(min_length=1)]
    seats_per_group: Annotated[StrictInt, Field(ge=1, le=999)] | None = None
    active_slots: Annotated[StrictInt, Field(ge=1, le=999)] | None = None


class TopologyEntry(_Entry):
    """How the GPUs are cut into groups; sizes without a group here are formed automatically."""

    groups: tuple[GroupEntry, ...] = ()


class SeatsConfig(_Entry):
    """The whole file. Build it with `parse_seats_config`, which checks it."""

    profiles: Annotated[tuple[ProfileEntry, ...], Field(min_length=1)]
    gpu_topology: TopologyEntry = TopologyEntry()
    device_strategy: Literal["cdi", "nodes"] = "cdi"


DEFAULT_SEATS = SeatsConfig.model_validate(
    {
        "profiles": [
            {
                "name": f"gpu-{size}x-seat",
                "resource": keys.seat_resource(size),
                "groupSize": size,
                "seatsPerGroup": seats,
            }
            for size, seats in ((1, 4), (2, 3), (4, 2))
        ]
    }
)
"""What a node offers when nobody says otherwise, for the sizes that it can form."""


def parse_seats_config(text: str) -> SeatsConfig:
    """The configuration in `text` (YAML). Raises ConfigError naming every wrong field."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError("profiles", f"the file isn't YAML: {error}") from error
    if data is None:
        raise ConfigError("profiles", "the file is empty; write at least one profile")
    if not isinstance(data, dict):
        raise ConfigError("profiles", "the file must be a mapping with `profiles`")
    try:
        config = SeatsConfig.model_validate(_in_full(data))
    except ValidationError as error:
        _refuse((_path(one["loc"]), _problem(one)) for one in error.errors())
        raise
    _refuse(_contradictions(config))
    return config


def _in_full(data: dict[str, Any]) -> dict[str, Any]:
    """The file with what its short forms stand for. Raises ConfigError if one is there twice."""
    full = dict(data)
    if isinstance(data.get("profiles"), list):
        full["profiles"] = [_profile_in_full(entry) for entry in data["profiles"]]
    if "groups" in data:
        if "gpuTopology" in data:
            raise ConfigError("groups", "stands for gpuTopology.groups; write one of the two")
        full["gpuTopology"] = {"groups": full.pop("groups")}
    return full


def _profile_in_full(entry: Any) -> Any:
    """A profile with the name and the size of groups that its resource says."""
    size = keys.seat_resource_size(str(entry.get("resource"))) if isinstance(entry, dict) else None
    if size is None:
        return entry
    return {"name": f"gpu-{size}x-seat", "groupSize": size, **entry}


def _refuse(problems: Iterable[tuple[str, str]]) -> None:
    found = list(problems)
    if found:
        (field, first), *rest = found
        lines = [first, *(f"{other}: {problem}" for other, problem in rest)]
        raise ConfigError(field, "\n".join(lines))


def _path(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.lstrip(".")


def _problem(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key; take it out or mend its spelling"
    if error["type"] == "missing":
        return "missing; write it"
    return f"{error['msg']} (got {error['input']!r})"


def _contradictions(config: SeatsConfig) -> Iterator[tuple[str, str]]:
    names = Counter(entry.name for entry in config.profiles)
    resources = Counter(entry.resource for entry in config.profiles)
    for number, entry in enumerate(config.profiles):
        where = f"profiles[{number}]"
        if names[entry.name] > 1:
            yield f"{where}.name", f"{entry.name} is used twice; give each profile its own name"
        if resources[entry.resource] > 1:
            yield f"{where}.resource", f"{entry.resource} is used twice; merge the profiles"
        if entry.resource != keys.seat_resource(entry.group_size):
            right = keys.seat_resource(entry.group_size)
            yield (
                f"{where}.resource",
                f"{entry.resource} doesn't fit groupSize {entry.group_size}; write {right}",
            )
        if entry.active_slots > entry.seats_per_group:
            yield (
                f"{where}.activeSlots",
                f"{entry.active_slots} is more than seatsPerGroup ({entry.seats_per_group})",
            )
    yield from _group_contradictions(config)


def _group_contradictions(config: SeatsConfig) -> Iterator[tuple[str, str]]:
    profiles = {entry.group_size: entry for entry in config.profiles}
    for number, group in enumerate(config.gpu_topology.groups):
        profile = profiles.get(len(group.gpus))
        if profile is None:
            continue  # the core says so, with the node's GPUs at hand
        seats = group.seats_per_group or profile.seats_per_group
        active = group.active_slots or profile.active_slots
        if active > seats:
            yield (
                f"gpuTopology.groups[{number}].activeSlots",
                f"{active} is more than the {seats} seats of {group.name}",
            )
