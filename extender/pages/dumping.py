"""What the extender decides by, as one record to look at elsewhere. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.views.dump import Dump, Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from extender.state.objects import SeatPod
    from kybernate.core.ledger.ledger import Ledger
    from kybernate.core.placement import Demand, Table
    from kybernate.core.placement.mix import Mix
    from kybernate.types import PodUid


def take(
    now: str,
    table: Table,
    mix: Mix,
    ledger: Ledger,
    pods: Sequence[SeatPod],
    expecting: Callable[[PodUid, Demand], Demand],
) -> Dump:
    """The ledger as it is, `now` as RFC 3339. `expecting` adds to a pod's demand what is known of
    its model."""
    nodes = tuple(filter(None, map(ledger.seats, ledger.nodes())))
    pending = tuple(
        Pending(
            pod.ref,
            expecting(pod.ref.uid, pod.demand) if pod.demand else None,
            pod.problem,
        )
        for pod in pods
        if pod.resource and pod.node is None and ledger.claim(pod.ref.uid) is None
    )
    movable = tuple(
        Pending(pod.ref, expecting(pod.ref.uid, pod.demand))
        for pod in pods
        if pod.demand and pod.node and pod.group and not (pod.gang or pod.leaving)
    )
    weights, claims = tuple(table.weights), tuple(ledger.claims())
    return Dump(now, table.usual, nodes, claims, pending, movable, weights, mix)
