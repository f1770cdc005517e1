"""Other parts of the extender that have a say in where a pod goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from extender.http.wire import Victims
    from extender.state.objects import SeatPod
    from kybernate.core.placement.verdicts import Fits
    from kybernate.core.requests.checkpoint import Target
    from kybernate.types import GroupName, NodeName

    Veto = Callable[[SeatPod, Mapping[NodeName, Victims]], Mapping[NodeName, Victims]]


def all_that_fit(_pod: dict[str, Any], found: Fits) -> Fits:
    """`Consulted.narrow` where there are no gangs."""
    return found


def any_group(_pod: SeatPod, _node: NodeName) -> GroupName | None:
    """`Consulted.admit` where there are no gangs."""
    return None


def of_nobody(_pod: SeatPod) -> str:
    """`Consulted.continues` where nothing was evicted."""
    return ""


def anywhere(_pod: SeatPod) -> Target | None:
    """`Consulted.target` where nothing was evicted."""
    return None


def from_nobody(_pod: SeatPod) -> Mapping[NodeName, str]:
    """`Consulted.kept_from` where nobody makes room for others."""
    return {}


def unheard(_pod: SeatPod, _nodes: Sequence[NodeName]) -> None:
    """`Consulted.heard` where nobody asks."""


@dataclass(frozen=True, slots=True)
class Consulted:
    """`narrow` leaves out nodes that fit but are not for this pod. `admit` says which group a pod
    must get on a node; raises ConflictError while it may get none, and may take its time, in which
    other pods are bound. `continues` says from which pod's state it continues, by its UID, which is
    no other pod's from then on; raises KybernateError. `target` says where a pod is to go while it
    fits there. `veto` leaves out nodes whose victims may not be deleted, or would be in vain;
    without one only the victims' owners are asked. `kept_from` says which nodes are not for this
    pod now, and why; `heard` is told of nodes that have no seat for a pod, on which it may run."""

    narrow: Callable[[dict[str, Any], Fits], Fits] = all_that_fit
    admit: Callable[[SeatPod, NodeName], GroupName | None] = any_group
    continues: Callable[[SeatPod], str] = of_nobody
    target: Callable[[SeatPod], Target | None] = anywhere
    veto: Veto | None = None
    kept_from: Callable[[SeatPod], Mapping[NodeName, str]] = from_nobody
    heard: Callable[[SeatPod, Sequence[NodeName]], None] = unheard
