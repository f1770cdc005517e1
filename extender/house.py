"""The rules of this cluster about who shares GPUs and who is placed how, as this process was
started with them.

Every pod is read under them, wherever it comes from (a watch, a call, the API server): a pod read
without them could get a seat beside one that it must not share with.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.core.placement import Choosing
from kybernate.core.sharing import Sharing, parse_sharing

if TYPE_CHECKING:
    from kybernate.core.forecast import Traffic

MOST_MODELS = 10_000


@dataclass(slots=True)
class House:
    """`apart`: no two models share that are hot at the same hours. Set before anything is read."""

    sharing: Sharing = field(default_factory=Sharing)
    apart: bool = False
    choosing: Choosing = field(default_factory=Choosing)

    def set(self, sharing: str, *, apart: bool, choosing: Choosing | None = None) -> None:
        """Take over the settings. Raises ConfigError if `sharing` is no rule."""
        self.sharing, self.apart = parse_sharing(sharing), apart
        self.choosing = choosing or Choosing()


HOUSE = House()


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
