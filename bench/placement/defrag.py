"""How long a plan of defragmentation takes: a big cluster, nearly full of pods of all sizes.

Two thirds of the nodes have H100s, all of whose seats are taken, one third A100s with a few seats
free. Pods that run on H100s only wait; some of those that have seats there would run on any GPU.
Sizes, and who is picky, are drawn with a fixed seed. `shapes` says how different nodes are: the
search looks once at nodes that are alike.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import click

from bench.cluster.fleet import GIB, node_seats
from bench.report import emit, say
from kybernate import keys
from kybernate.core.defrag import Budget, Cluster, Pending, Plan, Seated, plan
from kybernate.core.ledger.ledger import Claim, Ledger
from kybernate.core.ledger.parking import seat_cost
from kybernate.core.placement import Demand
from kybernate.core.tiers.tiers import move_seconds
from kybernate.types import PodRef, PodUid

if TYPE_CHECKING:
    from bench.report import Metrics
    from kybernate.types import Group, NodeName

ONE, TWO = keys.seat_resource(1), keys.seat_resource(2)
SEATS = 1


def build(nodes: int, rng: random.Random) -> Cluster:
    """The cluster."""
    ledger, seated = Ledger(), {}
    for number in range(nodes):
        product = "A100" if number % 3 == 2 else "H100"
        seats = node_seats(f"n{number:05}", SEATS, product, (1, 2))
        ledger.upsert_node(seats)
        gpus = {gpu.uuid: gpu for gpu in seats.gpus}
        for group in seats.groups:
            taken = group.seats
            if product == "A100" and rng.random() < 0.1:
                taken -= 1
            for seat in range(taken):
                one = occupant(f"p{number}-{group.name}-{seat}", seats.name, group, rng)
                size = seat_cost([gpus[uuid] for uuid in group.gpus], one.claim.vram)
                held = Seated(one.claim, one.demand, move_seconds(size))
                seated[one.claim.pod.uid] = held
                ledger.upsert_claim(one.claim)
    views = {name: ledger.node(name) for name in ledger.nodes()}
    return Cluster({name: view for name, view in views.items() if view is not None}, seated)


def occupant(name: str, at: NodeName, group: Group, rng: random.Random) -> Seated:
    """A pod of some size; nine of ten run on the product only that they have."""
    vram = rng.choice((8, 16, 24, 40, 70)) * GIB
    products = () if rng.random() < 0.1 else ("H100",)
    pod = PodRef("bench", name, PodUid(name))
    demand = Demand(group.resource, vram, products)
    return Seated(Claim(pod, at, group.name, group.resource, vram), demand, 0.0)


def pending(
    count: int, resource: str = ONE, products: tuple[str, ...] = ("H100",)
) -> list[Pending]:
    """Pods that wait."""
    return [
        Pending(PodRef("bench", f"w{at}", PodUid(f"w{at}")), Demand(resource, 24 * GIB, products))
        for at in range(count)
    ]


@click.command(help=__doc__)
@click.option("--nodes", default=5000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON line on stdout.")
def main(nodes: int, *, as_json: bool) -> None:
    """See the module."""
    cluster = build(nodes, random.Random(1))
    say(f"{nodes} nodes, {len(cluster.seated)} pods with a seat")
    metrics: Metrics = {"pods": (float(len(cluster.seated)), "pods")}
    cases = {
        "one": pending(1),
        "five": pending(5),
        "twenty": pending(20),
        "pairs": pending(3, TWO),
        "none": pending(1, products=("B200",)),
    }
    for name, wanted in cases.items():
        began = time.perf_counter()
        found = plan(cluster, wanted, Budget(effort=2000))
        metrics[f"{name}_s"] = time.perf_counter() - began, "s"
        if isinstance(found, Plan):
            metrics[f"{name}_moves"] = float(found.moves), "moves"
        metrics[f"{name}_proven"] = float(found.proven), "0 or 1"
    emit("defrag", metrics, {}, as_json=as_json)


if __name__ == "__main__":
    main()
