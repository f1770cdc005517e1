"""CheckpointPolicies, as far as they say who may be deleted for a more important pod."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.adapters.k8s import OF_USERS, Watcher
from kybernate.api import podnotes
from kybernate.api.policies import read_policies
from kybernate.core.policy.effective import effective
from kybernate.errors import ConfigError
from kybernate.lib.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable

    from extender.state.objects import SeatPod
    from kybernate.adapters.k8s import Api
    from kybernate.core.policy.effective import Policy

    Json = dict[str, Any]


class Policies:
    """Fed by a watch; any thread may ask. Where policies can't be listed, pods are as their
    annotations say. `wall` gives seconds since 1970."""

    def __init__(self, api: Api, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._items: Keyed[Json] = Keyed()
        self._read: dict[str, tuple[Policy, ...]] = {}
        self.watch = Watcher(
            *(api, keys.CHECKPOINT_POLICIES_PATH, {}, self.on_event, "CheckpointPolicies"),
            names_only=True,
            page=OF_USERS,
        )

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        meta = item["metadata"]
        namespace, name = str(meta["namespace"]), str(meta["name"])
        there = kind != "DELETED" and "deletionTimestamp" not in meta
        found: Json = {part: item[part] for part in ("metadata", "spec") if part in item}
        self._items.put(namespace, name, found if there else None)
        self._read[namespace] = read_policies(self._items.of(namespace))
        if not self._read[namespace]:
            del self._read[namespace]

    def expendable(self, pod: SeatPod) -> bool:
        """Whether the pod may be deleted for a more important one: as it says itself, else as the
        policy that governs it does."""
        policies = self._read.get(pod.ref.namespace)
        if not policies or pod.says_on_preempt:
            return pod.expendable
        found = effective(pod.labels, {}, policies, self._wall()).values.get(keys.ON_PREEMPT)
        try:
            return podnotes.expendable({keys.ON_PREEMPT: found.text} if found else {})
        except ConfigError:
            return False
