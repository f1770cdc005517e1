"""Who may share a GPU with whom: a rule of the cluster. Pure.

The rule gives each pod a *party*; seats whose groups have a GPU in common belong to pods of one
party. Parking clears GPU memory, so that sharing is a matter of trust in neighbours, of noise and
of accounting: some clusters let all share, others keep namespaces or teams apart.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Who(StrEnum):
    """Who may share."""

    ANY = "any"
    NAMESPACE = "namespace"
    LABELS = "labels"


@dataclass(frozen=True, slots=True)
class Sharing:
    """The rule. With `labels`, pods that have the same values of all of these may share; a label
    that a pod lacks is a value too."""

    who: Who = Who.ANY
    labels: tuple[str, ...] = ()

    def party(self, namespace: str, labels: Mapping[str, str]) -> str:
        """The pod's party, in words; empty where all may share."""
        if self.who is Who.NAMESPACE:
            return f"namespace {namespace}"
        if self.who is Who.LABELS:
            return ", ".join(f"{name}={labels.get(name, '')}" for name in self.labels)
        return ""


def parse_sharing(text: str, field: str = "sharing") -> Sharing:
    """The rule that `text` names: `any`, `namespace`, or `labels:NAME[,NAME...]`.

    Raises ConfigError, naming `field`.
    """
    who, _, rest = text.strip().partition(":")
    labels = tuple(sorted({name.strip() for name in rest.split(",") if name.strip()}))
    if who == Who.LABELS and labels:
        return Sharing(Who.LABELS, labels)
    if who in (Who.ANY, Who.NAMESPACE) and not rest:
        return Sharing(Who(who))
    raise ConfigError(
        field, f"{text!r} is no rule; write any, namespace, or labels:NAME,NAME such as labels:team"
    )


def strangers(party: str, others: Iterable[str]) -> tuple[str, ...]:
    """The parties among `others` with which this one may not share, sorted."""
    return tuple(sorted({other for other in others if other != party}))


def refusal(names: Iterable[str], party: str, found: Iterable[str]) -> str:
    """Why a pod can't have a seat of these groups, as a sentence."""
    who = " and of ".join(found)
    return (
        f"the GPUs of {', '.join(names)} are used by pods of {who}, the pod is of {party}, and the "
        "cluster's rule (sharing) keeps them apart"
    )
