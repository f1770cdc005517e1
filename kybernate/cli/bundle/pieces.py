"""What a support bundle is made of: each piece a file, the right that it takes, and how it is
read."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson

from kybernate import keys
from kybernate.api.lenient import mapping, mappings, text
from kybernate.cli.bundle import redacting
from kybernate.cli.cluster.examine import gather
from kybernate.cli.cluster.link import Source
from kybernate.core.doctor.cluster import examine_cluster
from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kybernate.adapters.k8s import Api

    Json = dict[str, Any]

CALL_S = 20.0
"""Seconds that one call may take."""

_PAGE = 500
_OURS = f"/apis/{keys.API_VERSION}"
_SYSTEM = f"/api/v1/namespaces/{keys.NAMESPACE}"
_OF_SYSTEM: Mapping[str, str] = {
    "pods": _SYSTEM,
    "events": _SYSTEM,
    "services": _SYSTEM,
    "deployments": f"/apis/apps/v1/namespaces/{keys.NAMESPACE}",
    "daemonsets": f"/apis/apps/v1/namespaces/{keys.NAMESPACE}",
    "statefulsets": f"/apis/apps/v1/namespaces/{keys.NAMESPACE}",
    "leases": f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}",
    "poddisruptionbudgets": f"/apis/policy/v1/namespaces/{keys.NAMESPACE}",
}
_HOOKS = "/apis/admissionregistration.k8s.io/v1"
_KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_MANAGED = f"{keys.MANAGED_LABEL}=true"
_PAGES = ("metrics", "readyz")
_SCRAPED_PORT = "probes"
_LINES_OF_LOG = 50_000
_NO_NAME = re.compile(r"[^a-z0-9-]")


@dataclass(frozen=True, slots=True)
class Right:
    """What the API server is asked for, as it asks an account's roles."""

    resource: str
    verb: str = "list"
    group: str = ""
    subresource: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {what}{where}"


@dataclass(frozen=True, slots=True)
class Limits:
    """`since_s`: how old lines of logs may be; `most`: bytes of one file."""

    since_s: int
    most: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of a piece; `note` says what of it isn't there."""

    body: bytes
    note: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of the bundle. `read` raises KybernateError if it can't be had."""

    file: str
    right: Right | None
    read: Callable[[], Taken]


def pieces(
    api: Api, version: str, namespace: str | None, limits: Limits
) -> tuple[list[Piece], list[str]]:
    """All pieces, what tells most first; and what could not even be looked for, in sentences."""
    problems: list[str] = []
    kinds = _kinds(api, problems)
    pods = _pods(api, problems)
    found = [
        Piece("versions.json", None, lambda: _versions(api, version)),
        Piece("doctor.json", None, lambda: _doctor(api)),
        *_objects(api, kinds, namespace, limits),
        *_system(api, limits),
        *_of_tenants(api, namespace, limits),
        *chain.from_iterable(_pages(api, pod, limits) for pod in pods),
        *chain.from_iterable(_logs(api, pod, limits) for pod in pods),
    ]
    return found, problems


def _kinds(api: Api, problems: list[str]) -> list[tuple[str, bool]]:
    """Plural and whether it has namespaces, of each of our kinds that is served."""
    try:
        served = mappings(api.get(_OURS, timeout=CALL_S).get("resources"))
    except KybernateError as error:
        problems.append(f"objects of {keys.GROUP}: {error}")
        return []
    return sorted(
        (text(one.get("name")), one.get("namespaced") is True)
        for one in served
        if "/" not in text(one.get("name"))
    )


def _pods(api: Api, problems: list[str]) -> list[Json]:
    """The system's own pods, whose logs and pages are taken."""
    try:
        return list(mappings(api.get(f"{_SYSTEM}/pods", timeout=CALL_S).get("items")))
    except KybernateError as error:
        problems.append(f"logs and metrics: {error}")
        return []


def _versions(api: Api, version: str) -> Taken:
    server = api.get("/version", timeout=CALL_S)
    return _json({"kybernate": version, "server": server})


def _doctor(api: Api) -> Taken:
    return _json([redacting.item(_finding(one)) for one in examine_cluster(gather(api))])


def _finding(one: Any) -> Json:
    return {"check": one.check, "level": one.level, "seen": one.seen, "do": one.do}


def _objects(
    api: Api, kinds: Sequence[tuple[str, bool]], namespace: str | None, limits: Limits
) -> Iterator[Piece]:
    for plural, namespaced in kinds:
        there = namespace if namespaced else None
        inside = f"/namespaces/{there}" if there else ""
        right = Right(plural, group=keys.GROUP, namespace=there or "")
        source = Source(f"{_OURS}{inside}/{plural}", {})
        yield _collection(api, f"objects/{plural}.json", source, right, limits)


def _system(api: Api, limits: Limits) -> Iterator[Piece]:
    for plural, path in _OF_SYSTEM.items():
        right = Right(plural, group=_group(path), namespace=keys.NAMESPACE)
        source = Source(f"{path}/{plural}", {})
        yield _collection(api, f"system/{plural}.json", source, right, limits)
    nodes = Source("/api/v1/nodes", {})
    yield _collection(api, "system/nodes.json", nodes, Right("nodes"), limits)
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        right = Right(plural, group=_group(_HOOKS))
        source = Source(f"{_HOOKS}/{plural}", {})
        yield _collection(api, f"system/{plural}.json", source, right, limits, _of_ours)
    right = Right("customresourcedefinitions", group=_group(_KINDS))
    definitions = Source(_KINDS, {})
    yield _collection(api, "system/definitions.json", definitions, right, limits, _defined)


def _group(path: str) -> str:
    """The API group of a path; the core's is empty."""
    return path.split("/")[2] if path.startswith("/apis/") else ""


def _of_ours(item: Json) -> Json | None:
    return item if text(mapping(item.get("metadata")).get("name")).startswith("kyb-") else None


def _defined(item: Json) -> Json | None:
    """Without the schema: a version has only one."""
    spec = mapping(item.get("spec"))
    if spec.get("group") != keys.GROUP:
        return None
    versions = [
        {"name": one.get("name"), "served": one.get("served"), "storage": one.get("storage")}
        for one in mappings(spec.get("versions"))
    ]
    return {"metadata": item["metadata"], "versions": versions, "status": item.get("status")}


def _of_tenants(api: Api, namespace: str | None, limits: Limits) -> Iterator[Piece]:
    """Pods that may hold seats, and what is told of them and of our objects; no logs: those are
    their owners'."""
    inside = f"/namespaces/{namespace}" if namespace else ""
    right = Right("pods", namespace=namespace or "")
    pods = Source(f"/api/v1{inside}/pods", {"labelSelector": _MANAGED})
    yield _collection(api, "pods.json", pods, right, limits)
    right = Right("events", namespace=namespace or "")
    events = Source(f"/api/v1{inside}/events", {})
    yield _collection(api, "events.json", events, right, limits, _Told(api, pods))


class _Told:
    """Takes events of our objects and of pods that may hold seats."""

    def __init__(self, api: Api, pods: Source) -> None:
        self._api, self._pods = api, pods
        self._uids: frozenset[str] | None = None

    def __call__(self, item: Json) -> Json | None:
        about = mapping(item.get("involvedObject"))
        if text(about.get("apiVersion")).startswith(f"{keys.GROUP}/"):
            return item
        return item if about.get("uid") in self._managed() else None

    def _managed(self) -> frozenset[str]:
        if self._uids is None:
            found = chain.from_iterable(_listed(self._api.of_metadata(), self._pods))
            self._uids = frozenset(str(one["metadata"]["uid"]) for one in found)
        return self._uids


def _pages(api: Api, pod: Json, limits: Limits) -> Iterator[Piece]:
    """What a service tells at its port for probes. The proxy tells metrics to holders of a key
    alone, and has no such port."""
    name, right = _name(pod), Right("pods", "get", "", "proxy", keys.NAMESPACE)
    port = next((one for one in _ports(pod) if one.get("name") == _SCRAPED_PORT), None)
    for page in _PAGES if port is not None else ():
        path = f"{_SYSTEM}/pods/{name}:{port and port.get('containerPort')}/proxy/{page}"
        yield Piece(f"{page}/{name}.txt", right, _reader(api, path, {}, limits.most))


def _ports(pod: Json) -> Iterator[Json]:
    for container in mappings(mapping(pod.get("spec")).get("containers")):
        yield from mappings(container.get("ports"))


def _logs(api: Api, pod: Json, limits: Limits) -> Iterator[Piece]:
    name, right = _name(pod), Right("pods", "get", "", "log", keys.NAMESPACE)
    status = mapping(pod.get("status"))
    states = [
        *mappings(status.get("initContainerStatuses")),
        *mappings(status.get("containerStatuses")),
    ]
    for state in states:
        container = text(state.get("name"))
        path = f"{_SYSTEM}/pods/{name}/log"
        query: dict[str, str | int | bool] = {
            "container": container,
            "sinceSeconds": limits.since_s,
            "tailLines": _LINES_OF_LOG,
            "timestamps": True,
        }
        # A kubelet says it, and nobody looks whether it is one.
        file = f"logs/{name}/{_NO_NAME.sub('_', container)}"
        yield Piece(f"{file}.log", right, _reader(api, path, query, limits.most))
        if state.get("restartCount"):
            before = {**query, "previous": True}
            yield Piece(f"{file}.previous.log", right, _reader(api, path, before, limits.most))


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _reader(
    api: Api, path: str, query: Mapping[str, str | int | bool], most: int
) -> Callable[[], Taken]:
    def read() -> Taken:
        # Of a log the newest lines count: a limit of the API server's own would keep the oldest.
        found = api.tail(path, query, most + 1, timeout=CALL_S)
        whole = len(found) <= most
        # A line that is cut may have half a key, which nobody would know for one.
        told = found if whole else found.partition(b"\n")[2]
        body = redacting.text(told.decode(errors="replace")).encode()
        return Taken(body, "" if whole else f"its last {len(body)} bytes; there is more")

    return read


def _collection(
    api: Api,
    file: str,
    source: Source,
    right: Right,
    limits: Limits,
    of: Callable[[Json], Json | None] = lambda item: item,
) -> Piece:
    """Objects as a list; as many as there is room for."""

    def read() -> Taken:
        lines: list[bytes] = []
        room = limits.most
        for page in _listed(api, source):
            for item in page:
                told = of(item)
                if told is None:
                    continue
                line = orjson.dumps(redacting.item(told))
                room -= len(line) + 2
                if room < 0:
                    return _array(lines, f"the first {len(lines)}; there are more")
                lines.append(line)
        return _array(lines)

    return Piece(file, right, read)


def _array(lines: list[bytes], note: str = "") -> Taken:
    """One object a line, as a JSON array."""
    return Taken(b"[\n" + b",\n".join(lines) + b"\n]\n", note)


def _json(document: object) -> Taken:
    return Taken(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def _listed(api: Api, source: Source) -> Iterator[list[Json]]:
    query: dict[str, str | int] = {**source.params, "limit": _PAGE}
    while True:
        page = api.get(source.path, query, timeout=CALL_S)
        yield list(mappings(page.get("items")))
        token = mapping(page.get("metadata")).get("continue")
        if not token:
            return
        query["continue"] = str(token)
