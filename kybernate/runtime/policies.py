"""The cluster's CheckpointPolicies, by namespace, and its Shares. One that can't be read counts for
nothing; while no policies are listed, pods are as their annotations say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.api.policies import read_policy
from kybernate.api.shares import read_share
from kybernate.core.policy.effective import Effective, Policy, effective, in_order
from kybernate.core.policy.shares import Share
from kybernate.runtime.listed import Listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.api.pods import Pod


class CheckpointPolicies(Listed[Policy]):
    """Fed by its watch's thread; any thread may ask. `changed` is told by that thread."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            keys.CHECKPOINT_POLICIES_PATH, "CheckpointPolicies", read_policy, self._forget
        )
        self._tell = changed
        self._changes = 0
        self._ordered: dict[str, tuple[int, tuple[Policy, ...]]] = {}

    def of(self, namespace: str) -> tuple[Policy, ...]:
        """Those of the namespace that count, see `effective.in_order`."""
        changes = self._changes
        known = self._ordered.get(namespace)
        if known is None or known[0] != changes:
            # Of what changes while this looks nothing is kept.
            known = self._ordered[namespace] = changes, in_order(super().of(namespace))
        return known[1]

    def judge(self, pod: Pod) -> Effective:
        """What counts for the pod now."""
        return effective(pod.labels, pod.notes, self.of(pod.namespace), time.time())

    def _forget(self, _: str) -> None:
        self._changes += 1
        self._tell()


class Shares(Listed[Share]):
    """Fed by its watch's thread; any thread may ask. `changed` is told by that thread."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(keys.SHARES_PATH, "Shares", read_share, lambda _: changed())
