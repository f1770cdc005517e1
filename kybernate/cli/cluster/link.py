"""The way to a cluster that kubectl takes, too: a kubeconfig, a context, a namespace."""

from __future__ import annotations

import os
import queue
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.api import pods
from kybernate.cli.options import kubeconfig_option, together
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, NotFoundError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kybernate.adapters.k8s import Api

    Json = dict[str, Any]

SYNC_S = 30.0
"""Seconds that the first lists of a watch may take."""

_SETTLE_S = 0.2
"""Seconds in which changes that come together are shown together."""

_PAGE = 500
_MANAGED = {"labelSelector": f"{keys.MANAGED_LABEL}=true"}


@dataclass(frozen=True, slots=True)
class Link:
    """A cluster, and the namespace that is meant; None for all."""

    api: Api
    namespace: str | None

    def of(self, kind: str) -> str:
        """Where the namespace has objects of one of our kinds."""
        return f"/apis/{keys.API_VERSION}/namespaces/{self.namespace}/{kind}"

    def all_of(self, path: str) -> Source:
        """Objects of the kind that has this path, of the namespace that is meant, or of all."""
        group, _, plural = path.rpartition("/")
        inside = "" if self.namespace is None else f"/namespaces/{self.namespace}"
        return Source(f"{group}{inside}/{plural}", {})

    def pods(self) -> Source:
        """The pods that may hold seats."""
        return Source(
            "/api/v1/pods" if self.namespace is None else pods.path(self.namespace, "")[:-1],
            _MANAGED,
        )


@dataclass(frozen=True, slots=True)
class Source:
    """A collection of objects."""

    path: str
    params: Mapping[str, str]


NODES = Source(keys.GPU_NODES_PATH, {})


def cluster_options(*, namespaced: bool = True) -> Callable[[Any], Any]:
    """The options that say which cluster is meant; `link_to` reads them."""
    options = [
        kubeconfig_option("As for kubectl."),
        click.option("--context", default=None, help="A context of it; else the current one."),
    ]
    if namespaced:
        options.append(
            click.option(
                "-n", "--namespace", default=None, help="Else the one that the context names."
            )
        )

    return together(*options)


def kubeconfig(named: Path | None) -> Path:
    """The file that is named, else kubectl's own. Raises ConfigError if there is none."""
    config = named or Path.home() / ".kube" / "config"
    # KUBECONFIG may name several, as kubectl reads it.
    if not any(Path(one).exists() for one in str(config).split(os.pathsep)):
        raise ConfigError(
            "kubeconfig",
            f"there is no {config}; name the file that kubectl takes by --kubeconfig or KUBECONFIG",
        )
    return config


def link_to(options: Mapping[str, Any]) -> Link:
    """The cluster that the options name. Raises ConfigError."""
    from kybernate.adapters.k8s import Api, namespace_of  # noqa: PLC0415 - slow

    config = kubeconfig(options["kubeconfig"])
    context, namespace = options["context"], options.get("namespace")
    if not namespace and "namespace" in options:
        namespace = namespace_of(config, context)
    if options.get("all_namespaces"):
        namespace = None
    return Link(Api(config, "kybernate", context), namespace)


def listed(api: Api, source: Source) -> list[Json]:
    """All objects of a collection, page by page."""
    found: list[Json] = []
    query: dict[str, str | int] = {**source.params, "limit": _PAGE}
    while True:
        page = api.get(source.path, query, timeout=SYNC_S)
        found += page.get("items") or ()
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return found
        query["continue"] = token


def may_list(api: Api, source: Source) -> bool:
    """Whether this account may: else somebody with less rights is shown less."""
    try:
        api.get(source.path, {**source.params, "limit": 1})
    except RefusedError:
        return False
    except NotFoundError as error:
        raise RefusedError(
            "this cluster has no GPUNodes: Kybernate is not installed on it (docs/how-to/install)"
        ) from error
    return True


def watched(
    api: Api, sources: Sequence[Source], until: float = inf
) -> Iterator[tuple[list[Json], ...]]:
    """What the collections hold, at once and after each change, until that monotonic time.

    Raises RetryableError if they can't be listed within SYNC_S.
    """
    from kybernate.adapters.k8s import Watcher  # noqa: PLC0415 - slow

    news: queue.SimpleQueue[tuple[int, str, Json]] = queue.SimpleQueue()
    held: list[dict[tuple[str, str], Json]] = [{} for _ in sources]

    def teller(number: int) -> Callable[[str, Json], None]:
        return lambda kind, item: news.put((number, kind, item))

    watchers = [
        Watcher(api, one.path, one.params, teller(number), one.path.rpartition("/")[2])
        for number, one in enumerate(sources)
    ]
    for watcher in watchers:
        watcher.start()
    try:
        for watcher in watchers:
            if not watcher.synced.wait(SYNC_S):
                raise RetryableError(watcher.last_error or "the API server gives no list in time")
        while True:
            while not news.empty():
                _take(held, news.get())
            yield tuple([into[key] for key in sorted(into)] for into in held)
            try:
                _take(held, news.get(timeout=_wait(until)))
            except queue.Empty:
                return
            # Those that come together are shown together.
            time.sleep(_SETTLE_S)
    finally:
        for watcher in watchers:
            watcher.stop(0.0)


def _wait(until: float) -> float | None:
    return None if until == inf else max(0.0, until - time.monotonic())


def _take(held: Sequence[dict[tuple[str, str], Json]], news: tuple[int, str, Json]) -> None:
    number, kind, item = news
    meta = item["metadata"]
    key = str(meta.get("namespace", "")), str(meta["name"])
    if kind == "DELETED":
        held[number].pop(key, None)
    else:
        held[number][key] = item
