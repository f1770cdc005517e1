"""What is known of models by the traffic of their seats."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kybernate.core.swap.forecast import Traffic

MOST_MODELS = 10_000


class Histories:
    """The traffic last seen of each model, by namespace and name: what its next pod is expected
    to have. One owner. Of too many, those that were not seen for longest are forgotten."""

    def __init__(self, most: int = MOST_MODELS) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[str, str], Traffic] = OrderedDict()

    def learn(self, namespace: str, model: str, traffic: Traffic) -> None:
        """A seat of the model has had this traffic."""
        self._seen[namespace, model] = traffic
        self._seen.move_to_end((namespace, model))
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def of(self, namespace: str, model: str) -> Traffic | None:
        """What is known of the model."""
        return self._seen.get((namespace, model))
