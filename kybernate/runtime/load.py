"""Settings from their sources: flag > environment > file > default, for every service alike.

A settings class is a frozen pydantic model; each field becomes `--field-name` and
`<PREFIX>_FIELD_NAME`. A wrong value ends in one clear line that names its source.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from pydantic import BaseModel, ValidationError

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

S = TypeVar("S", bound=BaseModel)


def command(
    settings: type[S], prefix: str, run: Callable[[S], None], summary: str
) -> click.Command:
    """A click command that loads `settings` and calls `run` with them."""
    options: list[click.Parameter] = [
        _option(settings, prefix, name) for name in settings.model_fields
    ]
    options.append(
        click.Option(["--config"], type=click.Path(dir_okay=False), help="YAML file of settings.")
    )
    options.append(
        click.Option(
            ["--validate-config"], is_flag=True, help="Check the settings, print them, and exit."
        )
    )

    def callback(config: str | None, validate_config: bool, **flags: Any) -> None:
        try:
            loaded = load(settings, prefix, flags, os.environ, Path(config) if config else None)
        except ConfigError as error:
            raise click.UsageError(str(error)) from error
        if validate_config:
            click.echo(loaded.model_dump_json(indent=2))
            return
        run(loaded)

    return click.Command(
        prefix.lower().replace("_", "-"),
        params=options,
        callback=callback,
        help=summary,
        context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    )


def load(
    settings: type[S],
    prefix: str,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None,
) -> S:
    """The settings from all sources. Raises ConfigError naming the first wrong field."""
    values: dict[str, Any] = _from_file(file) if file else {}
    unknown = sorted(set(values) - set(settings.model_fields))
    if unknown:
        raise ConfigError(unknown[0], f"unknown setting in {file}; see --help for the known ones")
    for name in settings.model_fields:
        env = environ.get(f"{prefix}_{name.upper()}")
        if env is not None:
            values[name] = env
        if flags.get(name) is not None:
            values[name] = flags[name]
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or settings.__name__
        raise ConfigError(field, f"{first['msg']} (got {first.get('input')!r})") from error


def _from_file(file: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - slow, and most services have no file

    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigError("--config", f"can't read {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError("--config", f"{file} isn't YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError("--config", f"{file} must hold a mapping of settings")
    return data


def _option(settings: type[BaseModel], prefix: str, name: str) -> click.Option:
    field = settings.model_fields[name]
    text = f"{field.description or ''}"
    if not field.is_required():
        text += f" [default: {field.get_default(call_default_factory=True)}]"
    text += f"  (env {prefix}_{name.upper()})"
    flag = f"--{name.replace('_', '-')}"
    return click.Option([flag], default=None, help=text, show_default=False)
