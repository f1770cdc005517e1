"""Taking over the probes of the seat's container, which may be parked when the kubelet asks. Pure.

The kubelet asks the sidecar instead, at one port per probe; exec probes go through kyb-init. What
the user wrote is recorded with the first pass, and the sidecar's arguments follow from the record.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from kybernate import keys
from webhook.pods.asking import annotations_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json = dict[str, Any]

ROLES = {"livenessProbe": "liveness", "readinessProbe": "readiness", "startupProbe": "startup"}
HANDLERS = ("httpGet", "tcpSocket", "grpc", "exec")
HINTS = "hints"
"""The workload does its part unasked, and says so by hints; see `sidecar.hints`."""
ENGINES = ("vllm", "sglang", "http", HINTS, "none")
_PORT = re.compile(r"[0-9]{1,5}")
_LAST_PORT = 65535
_LONGEST = 16 * 1024
"""Characters of a handler, which the record in the pod's annotations repeats."""
_OURS = range(keys.SIDECAR_FIRST_PORT, keys.SIDECAR_HINTS_PORT + 1)


def port_of(field: str) -> int:
    """The sidecar's port for this probe."""
    return keys.SIDECAR_FIRST_PORT + list(ROLES).index(field)


def originals(container: Json, recorded: Json) -> Json:
    """The handlers as the user wrote them, by probe: from the record where ours stand now."""
    return {
        field: recorded[field] if is_ours(field, container[field]) else _handler(container[field])
        for field in ROLES
        if container.get(field) and (field in recorded or not is_ours(field, container[field]))
    }


def is_ours(field: str, probe: Json) -> bool:
    """Whether the probe was taken over already."""
    for handler in ("httpGet", "grpc"):
        if (probe.get(handler) or {}).get("port") == port_of(field):
            return True
    command = (probe.get("exec") or {}).get("command") or []
    return bool(command[:2] == [keys.KYB_INIT_PATH, "probe"])


def intercept(container: Json, handlers: Json) -> None:
    """Have the kubelet ask us, for every probe that doesn't yet."""
    for field, handler in handlers.items():
        probe = container[field]
        if is_ours(field, probe):
            continue
        rest = {name: value for name, value in probe.items() if name not in HANDLERS}
        container[field] = {**rest, **_rewritten(field, handler, container)}


def scraped(pod: Json, container: Json, recorded: int | None) -> int | None:
    """The workload's port that Prometheus is told to scrape by the pod's annotations, if any."""
    notes = annotations_of(pod)
    if notes.get(keys.SCRAPE) != "true":
        return None
    port = notes.get(keys.SCRAPE_PORT, "")
    if port == str(keys.SIDECAR_SCRAPE_PORT):
        return recorded
    return int(port) if _is_number(port) else first_port(container)


def sidecar_arguments(
    pod: Json, container: Json, handlers: Json, scrape: int | None = None
) -> list[str]:
    """What the sidecar is told; empty if there is nothing for it to do."""
    told = []
    for field, handler in handlers.items():
        if "exec" in handler:
            continue
        kind, port = _kind(handler), resolve(container, _target(handler))
        timeout = container[field].get("timeoutSeconds") or 1
        words = [f"--{ROLES[field]}={kind}", str(port), f"timeout={timeout}"]
        if field == "livenessProbe" and (seconds := grace(container)):
            words.append(f"grace={seconds}")
        told.append(":".join(words))
    if scrape is not None:
        told.append(f"--scrape=http:{scrape}:timeout=10")
    engine = annotations_of(pod).get(keys.COOPERATE, "none")
    port = first_port(container)
    if engine not in (HINTS, "none") and port is not None:
        told.append(f"--cooperate={engine}:{port}")
    socket = f"--socket={keys.POD_SOCKET_DIR}/init.sock"
    return [socket, *told] if told or engine == HINTS else []


def grace(container: Json) -> int:
    """Seconds that a command may take to its first success, as the pod's own probes say."""
    startup = container.get("startupProbe")
    if startup:
        period, failures = startup.get("periodSeconds") or 10, startup.get("failureThreshold") or 3
        return int(startup.get("initialDelaySeconds") or 0) + int(period) * int(failures)
    return int((container.get("livenessProbe") or {}).get("initialDelaySeconds") or 0)


def resolve(container: Json, port: object) -> int | None:
    """The number of a port that may be a name; None if the container declares no such name."""
    if isinstance(port, int) or (isinstance(port, str) and _is_number(port)):
        return int(port)
    for declared in container.get("ports") or ():
        if declared.get("name") == port:
            number = declared.get("containerPort")
            return number if isinstance(number, int) else None
    return None


def _is_number(text: str) -> bool:
    return bool(_PORT.fullmatch(text))


def first_port(container: Json) -> int | None:
    """The port that the workload serves on."""
    for declared in container.get("ports") or ():
        if isinstance(declared.get("containerPort"), int):
            return int(declared["containerPort"])
    return None


def problems(pod: Json, container: Json, recorded: Json) -> Iterator[str]:
    """Why probes can't be taken over as they stand."""
    for field in ROLES:
        probe = container.get(field)
        if not probe:
            continue
        where = f"The {field} of container {container['name']}"
        if not is_ours(field, probe):
            yield from _handler_problems(where, _handler(probe), container)
        elif field in recorded:
            # A record comes with the pod, and may be anybody's.
            yield from _handler_problems(where, recorded[field], container)
        else:
            yield (
                f"{where} uses port {port_of(field)} or {keys.KYB_INIT_PATH}, which the "
                "webhook writes itself; write the workload's own port or command."
            )
    scrape = scraped(pod, container, None)
    if scrape is not None and not 0 < scrape <= _LAST_PORT:
        yield (
            f"Annotation {keys.SCRAPE_PORT} is {scrape}, which is no port; "
            f"write one from 1 to {_LAST_PORT}."
        )
    yield from _hook_problems(container)
    yield from _engine_problems(pod, container)


def _handler_problems(where: str, handler: Json, container: Json) -> Iterator[str]:
    length = len(orjson.dumps(handler))
    if length > _LONGEST:
        yield (
            f"{where} has {length} characters; write at most {_LONGEST}, such as a script in the "
            "image."
        )
    if list(handler) == ["exec"]:
        if not handler["exec"].get("command"):
            yield f"{where} names no command; write one."
        return
    if len(handler) != 1:
        yield f"{where} needs one of {', '.join(HANDLERS)}; write one, or remove the probe."
        return
    (inner,) = handler.values()
    if inner.get("host"):
        yield (
            f"{where} names the host {inner['host']}, but is answered for the workload while it "
            "is parked; leave host out."
        )
    port = resolve(container, inner.get("port"))
    if port is None:
        yield (
            f"{where} names the port {inner.get('port')!r}, which the container doesn't declare; "
            "add it under ports, or write its number."
        )
    if port in _OURS:
        yield (
            f"{where} asks port {port}, but {_OURS[0]} to {_OURS[-1]} are the sidecar's; use "
            "another port."
        )


def _hook_problems(container: Json) -> Iterator[str]:
    hook = (container.get("lifecycle") or {}).get("postStart") or {}
    for handler in ("httpGet", "tcpSocket"):
        if hook.get(handler):
            yield (
                f"The postStart hook of container {container['name']} asks the workload, which "
                "may still wait for its turn then; use a startupProbe."
            )


def _engine_problems(pod: Json, container: Json) -> Iterator[str]:
    engine = annotations_of(pod).get(keys.COOPERATE, "none")
    if engine not in ENGINES:
        yield f"{keys.COOPERATE} is {engine!r}; write one of {', '.join(ENGINES)}."
    elif engine not in (HINTS, "none") and first_port(container) is None:
        yield (
            f"{keys.COOPERATE} is {engine}, but container {container['name']} declares no port to "
            "ask; add the engine's port under ports."
        )


def _handler(probe: Json) -> Json:
    """The handler alone; the API server lets a probe have one."""
    return {name: probe[name] for name in HANDLERS if probe.get(name) is not None}


def _kind(handler: Json) -> str:
    if "httpGet" in handler:
        return "https" if handler["httpGet"].get("scheme") == "HTTPS" else "http"
    return "tcp" if "tcpSocket" in handler else "grpc"


def _target(handler: Json) -> object:
    (inner,) = handler.values()
    return inner.get("port")


def _rewritten(field: str, handler: Json, container: Json) -> Json:
    ours = port_of(field)
    if "exec" in handler:
        words = [keys.KYB_INIT_PATH, "probe"]
        if field == "livenessProbe" and (seconds := grace(container)):
            words += ["--liveness", str(seconds)]
        return {"exec": {"command": [*words, "--", *handler["exec"]["command"]]}}
    if "grpc" in handler:
        return {"grpc": {**handler["grpc"], "port": ours}}
    if "tcpSocket" in handler:
        return {"httpGet": {"path": "/", "port": ours, "scheme": "HTTP"}}
    return {"httpGet": {**handler["httpGet"], "port": ours, "scheme": "HTTP"}}
