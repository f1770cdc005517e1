"""What a user is told though the pod is admitted: things that look like mistakes. Pure.

The API server hands these on as warnings, which kubectl prints; it cuts them at 256 characters.
"""

from __future__ import annotations

import difflib
import itertools
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api import podnotes
from kybernate.core.quantity import format_quantity, parse_quantity
from webhook.pods import asking
from webhook.pods.validate import wish

if TYPE_CHECKING:
    from webhook.pods.cluster import Cluster

    Json = dict[str, Any]

_MOST = 8
_LONGEST = 250


def advice(pod: Json, cluster: Cluster) -> list[str]:
    """Sentences about a pod that `refusals` found nothing wrong with; none if it isn't ours."""
    ask, _ = asking.read_ask(pod) if asking.concerns_us(pod) else (None, [])
    if ask is None:
        return []
    said = [*_unknown_names(pod), *_unknown_products(pod, cluster), *_vram(pod, ask, cluster)]
    return [sentence[:_LONGEST] for sentence in said[:_MOST]]


def _unknown_names(pod: Json) -> list[str]:
    written = (keys.ORIGINAL_RESOURCES, keys.MADE_FOR)
    known = (*keys.USER_ANNOTATIONS, *keys.SYSTEM_ANNOTATIONS, *written)
    ours = (name for name in asking.annotations_of(pod) if name.startswith(f"{keys.GROUP}/"))
    said = []
    for name in itertools.islice((name for name in ours if name not in known), _MOST):
        near = difflib.get_close_matches(name[:64], keys.USER_ANNOTATIONS, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        said.append(f"Annotation {name[:64]} has no effect{hint}")
    return said


def _unknown_products(pod: Json, cluster: Cluster) -> list[str]:
    known, accepted = cluster.products(), podnotes.products(asking.annotations_of(pod))
    if not known or known & set(accepted) or not accepted:
        return []
    there = ", ".join(sorted(known))
    return [f"{keys.GPU_PRODUCT}: no node has such a GPU now; there are: {there}."]


def _vram(pod: Json, ask: asking.Ask, cluster: Cluster) -> list[str]:
    stated = asking.annotations_of(pod).get(keys.VRAM)
    largest = max(cluster.gpu_sizes(wish(pod, ask.resource)), default=None)
    if stated is None or largest is None or parse_quantity(stated) <= largest:
        return []
    sentence = (
        f"{keys.VRAM} is {stated}, but the largest GPU known that suits the pod has "
        f"{format_quantity(largest)}: it waits until there is a larger one."
    )
    return [sentence]
