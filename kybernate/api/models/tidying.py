"""What of a file counts here: llama-swap's other places for a key, and keys that mean nothing."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from kybernate.api.models.values import Part
from kybernate.errors import ConfigError

Json = dict[str, Any]
Warnings = list[str]

_HERE = "means nothing here"
MEANINGLESS: dict[str, str] = {
    "captureBuffer": f"{_HERE}: no request's body is kept",
    "logRequests": f"{_HERE}: every request is logged, without its body",
    "logTimeFormat": f"{_HERE}: a line of the log begins with the time as RFC 3339",
    "logToStdout": f"{_HERE}: models' output goes to files, see GET /logs",
    "matrix": f"{_HERE}: models are active together where vram says that they fit, in any sets",
    "metricsMaxInMemory": f"{_HERE}: GET /metrics counts, and keeps no single request",
    "peers": f"{_HERE}: only this box's models are served; requests for a peer's are answered 404",
    "performance": f"{_HERE}: GET /ui shows the GPUs, GET /metrics counts requests",
    "profiles": f"{_HERE}: none can be chosen; a name that only a profile has is answered 404",
    "selectors": f"{_HERE}: one name leads to one model; requests for them are answered 404",
    "sendLoadingState": f"{_HERE}: a woken model needs no loading messages",
    "store": f"{_HERE}: no request is kept",
    "ui": f"{_HERE}",
    "models.*.sendLoadingState": f"{_HERE}: a woken model needs no loading messages",
    "models.*.timeouts.connect": f"{_HERE}: a server of this box that is awake accepts at once",
    "models.*.timeouts.expectContinue": f"{_HERE}: no request is sent in two steps",
    "models.*.timeouts.idleConn": f"{_HERE}: connections are closed before a park",
    "models.*.timeouts.keepalive": f"{_HERE}: connections are closed before a park",
    "models.*.timeouts.tlsHandshake": f"{_HERE}: a model's server speaks plain HTTP on this box",
}
"""Keys that llama-swap has and Kybernate does not, and what is so instead."""

_OLD_SPELLINGS = {"strip_params": "stripParams"}


def arranged(raw: Json, warnings: Warnings) -> Json:
    """The file with `routing` taken apart into `groups` and `priority`, where they are here.

    Raises ConfigError if groups are in both places, as llama-swap does.
    """
    raw = dict(raw)
    routing = _mapping(raw.pop("routing", None), "routing")
    router = _mapping(routing.get("router"), "routing.router")
    settings = _mapping(router.get("settings"), "routing.router.settings")
    scheduler = _mapping(routing.get("scheduler"), "routing.scheduler")
    if router and (raw.get("groups") or raw.get("matrix")):
        raise ConfigError("groups", "is also below routing.router; leave one of them")
    use = router.get("use") or "group"
    if use not in ("group", "matrix"):
        raise ConfigError("routing.router.use", f"write {use!r} as group or matrix")
    if use == "matrix" or raw.get("matrix"):
        warnings.append(f"matrix: {MEANINGLESS['matrix']}")
    raw.pop("matrix", None)
    if use == "group" and settings.get("groups"):
        raw["groups"] = settings["groups"]
    fifo = _mapping(
        _mapping(scheduler.get("settings"), "routing.scheduler.settings").get("fifo"), ""
    )
    if fifo.get("priority"):
        raw["priority"] = fifo["priority"]
    return raw


def tidied(value: object, form: type[Part], path: str, warnings: Warnings) -> Json:
    """A part without what means nothing, each with its warning, and without empty keys.

    Raises ConfigError for a key that is a known one misspelt.
    """
    kept: Json = {}
    fields = {field.alias or name: field.annotation for name, field in form.model_fields.items()}
    for said, one in _mapping(value, path).items():
        key = _OLD_SPELLINGS.get(said, said)
        here = f"{path}.{key}" if path else key
        if key not in fields:
            warnings.append(f"{here}: {_meaningless(key, here, fields)}")
        elif one is not None:
            kept[key] = _inner(one, fields[key], here, warnings)
    return kept


def _inner(value: Any, annotation: Any, path: str, warnings: Warnings) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return tidied(value, annotation, path, warnings)
    inner = [one for one in get_args(annotation) if isinstance(one, type) and issubclass(one, Part)]
    if not inner:
        return value
    parts = _mapping(value, path).items()
    return {name: tidied(one, inner[0], f"{path}.{name}", warnings) for name, one in parts}


def _meaningless(key: str, path: str, fields: Json) -> str:
    for known, said in MEANINGLESS.items():
        above, star, below = known.partition(".*.")
        if path == known or (star and path.startswith(f"{above}.") and path.endswith(f".{below}")):
            return said
    if near := difflib.get_close_matches(key, fields, 1, 0.8):
        raise ConfigError(path, f"is no key; did you mean {near[0]}?")
    return "is no key of this file, and is left out"


def _mapping(value: object, path: str) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(path, "must be a mapping")
    return value
