"""What of a file can be told only from the whole of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kybernate.api.models.file import ModelsFile
    from kybernate.api.models.model import Model
    from kybernate.api.models.tidying import Warnings


def inherited(file: ModelsFile) -> ModelsFile:
    """The file whose models have what is set for all of them, or for their group."""
    staying = {
        name
        for group in file.groups.values()
        if group.persistent and not group.swap
        for name in group.members
    }
    models = {
        name: _with_limits(model, file, pin=model.pin or name in staying)
        for name, model in file.models.items()
    }
    return file.model_copy(update={"models": models})


def without(file: ModelsFile, names: Collection[str]) -> ModelsFile:
    """The file as if these models were not in it."""
    kept = {name: model for name, model in file.models.items() if name not in names}
    left = file.model_copy(update={"models": kept})
    left.__dict__.pop("names", None)  # a copy has what was worked out of all models, too
    return checked(left, [])


def checked(file: ModelsFile, warnings: Warnings) -> ModelsFile:
    """The file without names of models that it doesn't have, each with a warning.

    Raises ConfigError if a model is in two groups.
    """
    group_of: dict[str, str] = {}
    groups = {}
    for name, group in file.groups.items():
        path = f"groups.{name}.members"
        members = _known(group.members, file.models, path, warnings)
        groups[name] = group.model_copy(update={"members": members})
        for member in members:
            if group_of.setdefault(member, name) != name:
                raise ConfigError(
                    path, f"{member} is in {group_of[member]}, too; leave one of them"
                )
    preload = _known(
        file.hooks.on_startup.preload, file.names, "hooks.on_startup.preload", warnings
    )
    idle = _known(file.hooks.on_idle.wake, file.names, "hooks.on_idle.wake", warnings)
    first = _known(file.priority, file.names, "priority", warnings)
    _warn_of_ports(file, warnings)
    startup = file.hooks.on_startup.model_copy(update={"preload": _models(file, preload)})
    on_idle = file.hooks.on_idle.model_copy(update={"wake": _models(file, idle)})
    hooks = {"on_startup": startup, "on_idle": on_idle}
    return file.model_copy(
        update={
            "groups": groups,
            "hooks": file.hooks.model_copy(update=hooks),
            "priority": {file.names[name]: file.priority[name] for name in first},
        }
    )


def _models(file: ModelsFile, names: Iterable[str]) -> tuple[str, ...]:
    """The models that these names or aliases mean, each once."""
    return tuple(dict.fromkeys(file.names[name] for name in names))


def _with_limits(model: Model, file: ModelsFile, *, pin: bool) -> Model:
    limits = {
        "pin": pin,
        "ttl": file.global_ttl if model.ttl < 0 else model.ttl,
        "unload_timeout": model.unload_timeout or file.unload_timeout,
        "health_check_timeout": model.health_check_timeout or file.health_check_timeout,
    }
    return model.model_copy(update=limits)


def _known(
    names: Iterable[str], known: Collection[str], path: str, warnings: Warnings
) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            warnings.append(f"{path}: {name!r} is no model of this file, and is left out")
    return tuple(name for name in wanted if name in known)


def _warn_of_ports(file: ModelsFile, warnings: Warnings) -> None:
    for name in file.models:
        if others := file.rivals(name):
            problem = f"has the address of {', '.join(others)}; a parked model keeps its port"
            warnings.append(
                f"models.{name}: {problem}, so one can't start until the other is unloaded; use "
                "${PORT}"
            )
