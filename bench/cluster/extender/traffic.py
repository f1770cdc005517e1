"""Days of traffic for the fleet's seats: each model's own, each seat's a little different."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from bench.cluster import fleet
from kybernate import keys
from kybernate.core.swap.activity import HOURS

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json = dict[str, Any]


def nodes(count: int, pods: int) -> Iterator[Json]:
    """The fleet's GPUNodes, with what their agents tell of its bound pods' seats."""
    seats: dict[str, list[Json]] = {}
    for item in fleet.pods(count, pods):
        told = {"uid": item["metadata"]["uid"], "activity": _activity(item["metadata"])}
        seats.setdefault(item["spec"]["nodeName"], []).append(told)
    for number in range(count):
        node = fleet.gpu_node(number)
        node["status"]["seats"] = seats.get(node["metadata"]["name"], [])
        yield node


def _activity(meta: Json) -> Json:
    model, seat = random.Random(meta["annotations"][keys.MODEL]), random.Random(meta["uid"])
    begin, length = model.randrange(HOURS), model.choice((6, 8, 10, 14))
    high, low = model.choice((200, 400, 600, 800)), model.choice((0, 10, 50))
    hours = {(begin + hour) % HOURS for hour in range(length)}
    calls = model.choice((10, 40, 120))
    busy = [(high if hour in hours else low) * seat.uniform(0.7, 1.3) for hour in range(HOURS)]
    rates = [
        (calls if hour in hours else calls / 10) * seat.uniform(0.7, 1.3) for hour in range(HOURS)
    ]
    return {"busy": [min(1000, round(share)) for share in busy], "calls": rates}
