"""From the text of models.yaml to what counts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kybernate.api.models import macros, text
from kybernate.api.models.checks import checked, inherited
from kybernate.api.models.commands import without_comments
from kybernate.api.models.file import ModelsFile
from kybernate.api.models.tidying import Warnings, arranged, tidied
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.api.models.macros import Scalar

    Json = dict[str, Any]

_PORT = "${PORT}"
_AT_PORT = re.compile(r"http://[^/]*:(\d{1,5})(?:/|$)")
_DIGITS = re.compile(r"[0-9]{1,5}")
_OWN_PORT = re.compile(r"(?:^|\s)--(?:listen-)?port[=\s]+(\d{1,5})(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Read:
    """The file as it counts, and a sentence for each key that does not."""

    file: ModelsFile
    warnings: tuple[str, ...] = ()

    @property
    def ports(self) -> dict[str, int]:
        """Each model's ${PORT}; `read` keeps them if they are given to it the next time."""
        models = self.file.models.items()
        return {name: model.port for name, model in models if model.port is not None}


def read(content: str, environ: Mapping[str, str], ports: Mapping[str, int] | None = None) -> Read:
    """The file that says `content`. Raises ConfigError naming the key that is wrong.

    `environ` fills `${env.NAME}` in. `ports`: those of models that have been read before, which
    they keep, so that their commands stay the same.
    """
    warnings: Warnings = []
    raw = macros.fill_environment(text.parse(content), environ)
    shared = macros.defined(raw.pop("macros", None), "macros")
    models = _models(raw.pop("models", None))
    rest = macros.fill(raw, shared)
    first = _start_port(rest)
    given = _Ports(first, dict(ports or {}))
    filled = {name: _filled(name, one, shared) for name, one in models.items()}
    for model in filled.values():
        given.claim(model)
    for name in sorted(filled):
        filled[name] = given.fill(name, filled[name], warnings)
    whole = tidied(arranged(rest | {"models": filled}, warnings), ModelsFile, "", warnings)
    _check_macros(whole)
    file = checked(inherited(_validated(whole)), warnings)
    return Read(file, tuple(warnings))


def _models(value: object) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError("models", "must be a mapping of models' names")
    for name, model in value.items():
        if not isinstance(model, dict):
            raise ConfigError(f"models.{name}", "must be a mapping with at least cmd")
    return value


def _filled(name: str, model: Json, shared: dict[str, Scalar]) -> Json:
    model = dict(model)
    own = macros.defined(model.pop("macros", None), f"models.{name}.macros")
    for key in ("cmd", "cmdStop"):
        if isinstance(model.get(key), str):
            model[key] = without_comments(model[key])
    return _with(model, {"MODEL_ID": name, **shared, **own})


def _with(model: Json, words: dict[str, Scalar]) -> Json:
    filled: Json = macros.fill(model, words)
    filters = filled.get("filters")
    by_id = filters.get("setParamsByID") if isinstance(filters, dict) else None
    if isinstance(filters, dict) and isinstance(by_id, dict):
        named = {macros.fill_key(key, words): one for key, one in by_id.items()}
        filled["filters"] = filters | {"setParamsByID": named}
    return filled


class _Ports:
    """Gives out ports, each once."""

    def __init__(self, first: int, before: dict[str, int]) -> None:
        self._next = first
        self._before = before
        self._named: set[int] = set()
        self._taken = set(before.values())

    def claim(self, model: Json) -> None:
        """A port that the file names is nobody else's."""
        cmd, stated = str(model.get("cmd") or ""), str(model.get("port") or "")
        said = [stated]
        if _PORT not in cmd:
            found = _OWN_PORT.search(cmd), _AT_PORT.match(str(model.get("proxy") or ""))
            said += [one[1] for one in found if one]
        self._named.update(int(one) for one in said if _DIGITS.fullmatch(one))
        self._taken |= self._named

    def fill(self, name: str, model: Json, warnings: Warnings) -> Json:
        """The model with its port. Raises ConfigError if only `proxy` asks for one."""
        cmd, proxy = str(model.get("cmd") or ""), model.get("proxy")
        if _PORT not in cmd:
            if isinstance(proxy, str) and _PORT in proxy and "port" not in model:
                problem = f"uses {_PORT}, but cmd does not; put {_PORT} into cmd, or set port"
                raise ConfigError(f"models.{name}.proxy", problem)
            if proxy is None and "port" not in model:
                model = self._own(name, model, cmd, warnings)
        if _PORT in cmd or "port" in model or proxy is None:
            port = model.get("port", None)
            return _with(model, {"PORT": port}) if port else self._give(name, model)
        return model

    def _own(self, name: str, model: Json, cmd: str, warnings: Warnings) -> Json:
        if found := _OWN_PORT.search(cmd):
            return model | {"port": int(found[1])}
        said = f"cmd does not use {_PORT}, and proxy is not set: its server must listen on $PORT"
        warnings.append(f"models.{name}.cmd: {said}")
        return model

    def _give(self, name: str, model: Json) -> Json:
        port = self._before.get(name)
        if port is None or port in self._named:
            while self._next in self._taken:
                self._next += 1
            port = self._next
            self._taken.add(port)
        if port > 65535:
            raise ConfigError("startPort", "no port is left from there on; choose a lower one")
        return _with(model | {"port": port}, {"PORT": port})


def _start_port(rest: Json) -> int:
    port = rest.get("startPort", 5800)
    if isinstance(port, str) and port.isascii() and port.isdigit():
        port = int(port)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigError("startPort", f"write {port!r} as a port, for example 5800")
    return port


def _check_macros(whole: Json) -> None:
    for path, name in macros.unknown(whole, ""):
        if name == "PID" and path.endswith(".cmdStop"):
            continue
        problem = f"uses ${{{name}}}, which no macro defines; define it under macros:"
        raise ConfigError(path, problem)


def _validated(whole: Json) -> ModelsFile:
    try:
        return ModelsFile.model_validate(whole)
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")
        path = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
        if not path:
            path, _, said = said.partition(": ")
        # What a key says isn't shown: a log keeps it.
        silent = first["type"] in ("missing", "value_error") or path.startswith("apiKeys")
        got = "" if silent else f" (got {str(first.get('input'))[:60]!r})"
        raise ConfigError(path, f"{said}{got}") from error
