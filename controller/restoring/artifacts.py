"""Artifacts as objects: a projection of the registry, by one writer, with few calls.

The registry stays the truth. An object is written when the registry tells of an artifact, and
deleted when it no longer does; deleting one by hand deletes no artifact, and brings it back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from controller import metrics
from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.api.restoring.artifacts import LATEST_MS, dump_artifact, read_artifact
from kybernate.core.artifacts.listed import (
    MOST_COPIES,
    HeldCopy,
    Listed,
    changes,
    key_of,
    labelled,
    object_name,
)
from kybernate.errors import ConflictError, NotFoundError, RefusedError
from kybernate.lib.rounds import rounds_blocking
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from controller.base.known import Requests
    from controller.policies import Policies
    from kybernate.adapters.k8s import Api
    from kybernate.adapters.registry.client import Registry
    from kybernate.core.requests.checkpoint import Request
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]
    Key = tuple[str, str]

log = logging.getLogger(__name__)

MOST_WRITES = 100
"""Calls to the API server in one round; the rest waits for the next one."""
_PAGE = 500


class Artifacts:
    """The objects as they were last seen. Fed by the watch's thread; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Key, Listed | None] = {}

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        key = str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
        with self._lock:
            if kind == "DELETED":
                self._seen.pop(key, None)
            else:
                self._seen[key] = read_artifact(item)

    def get(self, key: Key) -> Listed | None:
        """The artifact of the object of this namespace and name."""
        return self._seen.get(key)

    def all(self) -> dict[Key, Listed | None]:
        """All objects; None for one that can't be read."""
        with self._lock:
            return dict(self._seen)


class Projection:
    """Has objects say what the registry knows. `each`: objects of a namespace at most, `every` so
    many seconds."""

    def __init__(  # noqa: PLR0913 - each of them is another part
        self,
        api: Api,
        artifacts: Artifacts,
        registry: Callable[[], Registry],
        described: Callable[[], Callable[[Listed], Listed]],
        fence: Fence,
        *,
        timeout: float,
        every: float,
        each: int,
    ) -> None:
        """`registry` gives a client by the certificates of now, `described` what adds what the
        registry doesn't know; a call of the API server takes `timeout` s at most."""
        self._api = api
        self._artifacts = artifacts
        self._registry = registry
        self._described = described
        self._fence = fence
        self._timeout = timeout
        self._every = every
        self._each = each
        self._failed: dict[Key, None] = {}

    def run(self, stopping: threading.Event) -> None:
        """Look now and then, while this replica leads, until told to stop."""
        rounds_blocking(partial(self.project, stopping), stopping, self._every, "artifacts")

    def project(self, stopping: threading.Event) -> None:
        """Look once. Raises KybernateError if the registry can't be read as a whole: then nothing
        is written."""
        if self._fence.closed() is not None:
            return
        objects = self._artifacts.all()
        known = list(self._known(objects))
        there = {*objects, *map(key_of, known)}
        self._failed = {key: None for key in self._failed if key in there}
        wanted = changes(known, objects, self._each, MOST_WRITES, tuple(self._failed))
        missing: set[str] = set()
        acts = [
            *(("dropped", key, partial(self._drop, key)) for key in wanted.drop),
            *(("made", key_of(one), partial(self._make, one)) for one in wanted.make),
            *(("changed", key_of(one), partial(self._change, one)) for one in wanted.change),
        ]
        for outcome, key, act in acts:
            if stopping.is_set():
                return
            # What fails is the last of the next rounds: others wait for none of it.
            self._failed.pop(key, None)
            if key[0] in missing:
                self._failed[key] = None
                continue
            self._fence.check()
            try:
                act()
            except (NotFoundError, RefusedError) as error:
                self._failed[key] = None
                if isinstance(error, NotFoundError):
                    # Its namespace is gone: its other ones would be, too.
                    missing.add(key[0])
                log.info("Artifact %s/%s is not written: %s", *key, error)
            metrics.ARTIFACT_WRITES.labels("failed" if key in self._failed else outcome).inc()

    def _known(self, objects: dict[Key, Listed | None]) -> Iterator[Listed]:
        wanted, described = wire.Filter(newest=self._each, limit=_PAGE), self._described()
        for entry in self._registry().all(wanted):
            found = described(listed(entry))
            before = objects.get(key_of(found))
            if before is not None:
                # A pod is gone sooner than its artifacts, and so is a request.
                owner, policy = found.owner or before.owner, found.policy or before.policy
                found = found._replace(owner=owner, policy=policy)
            yield found

    def _make(self, one: Listed) -> None:
        with contextlib.suppress(ConflictError):
            self._api.post(_path(one.namespace), _without_null(one), timeout=self._timeout)

    def _change(self, one: Listed) -> None:
        found = dump_artifact(one)
        body = {"metadata": {"labels": found["metadata"]["labels"]}, "status": found["status"]}
        path = f"{_path(one.namespace)}/{object_name(one.artifact)}"
        self._api.patch(path, body, timeout=self._timeout)

    def _drop(self, key: Key) -> None:
        with contextlib.suppress(NotFoundError):
            self._api.delete(f"{_path(key[0])}/{key[1]}", timeout=self._timeout)


def describing(requests: Requests[Request], policies: Policies) -> Callable[[Listed], Listed]:
    """Adds what the controller's other watches know of an artifact now: what made its pod, and the
    policy that had it made."""
    owners = {one.labelled.uid: one.owner.name for one in policies.all_pods()}
    made = {
        one.status.outcome.artifact: one.policy
        for one in requests.all()
        if one.policy and one.status.outcome is not None
    }
    names = policies.names()

    def described(one: Listed) -> Listed:
        policy = names.get(made.get(one.artifact, ""), "")
        owner = owners.get(one.pod_uid, "")
        return one._replace(owner=labelled(owner), policy=labelled(policy))

    return described


def listed(entry: wire.Entry) -> Listed:
    """An artifact as the registry tells of it."""
    deep = [copy for copy in entry.copies if copy.place is not Tier.RAM]
    return Listed(
        entry.id,
        entry.pod,
        entry.pod_uid,
        entry.model,
        entry.size,
        # An agent may say any number.
        min(entry.created_ms, LATEST_MS),
        tuple(
            HeldCopy(copy.place.value, copy.node, copy.state.value, copy.size)
            for copy in deep[:MOST_COPIES]
        ),
    )


def _without_null(one: Listed) -> Json:
    body = dump_artifact(one)
    labels = body["metadata"]["labels"]
    body["metadata"]["labels"] = {name: value for name, value in labels.items() if value}
    return body


def _path(namespace: str) -> str:
    return f"/apis/{keys.API_VERSION}/namespaces/{namespace}/artifacts"
