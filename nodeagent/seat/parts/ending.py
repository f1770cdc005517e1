"""How a seat ends, and what it must not do before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ending:
    """`asked`: its container was asked to end, or its tree is being killed, `since` then.

    `doomed`: the pod is being deleted; `deleted`: the pod is gone. `forfeit`: why it is ended
    instead of parked; `on_demand`: having ended so, it starts again only when called for.
    `apart`: it was found running without a record, and is not yet known to be where its state says.
    """

    asked: bool = False
    since: float = 0.0
    doomed: bool = False
    deleted: bool = False
    forfeit: str = ""
    on_demand: bool = False
    apart: bool = False
