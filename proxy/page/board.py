"""What a page is made of: a desk's seats, what was noted of them, and what is behind them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from proxy.page.history import History
from proxy.page.rates import Rates
from proxy.page.shape import Known, Waiting, page, spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.types import PodUid
    from proxy.actions import Client, SeatInfo
    from proxy.admission import Admission
    from proxy.page.shape import Scene

_ANYHOW_S = 1.0
"""Also what nobody tells of changes: rates, a GPU's memory."""


class Board:
    """One desk's. Implements `proxy.desk.Watching`."""

    def __init__(self, admission: Admission, scene: Callable[[], Scene]) -> None:
        self.history = History()
        self.rates = Rates()
        self._admission, self._scene = admission, scene
        self._loop = asyncio.get_running_loop()
        self._dirty, self._told_at = True, 0.0

    @property
    def now(self) -> float:
        """As the desk's."""
        return self._loop.time()

    def seat(self, info: SeatInfo) -> None:
        """See `Watching`."""
        self.history.seat(info, self.now)

    def gone(self, uid: PodUid) -> None:
        """See `Watching`."""
        self.history.gone(uid, self.now)

    def touched(self) -> None:
        """See `Watching`."""
        self._dirty = True

    def over(self, model: str, status: int, held: float) -> None:
        """See `Watching`."""
        self.rates.count(model, status, held, self.now)

    def changed(self) -> bool:
        """Whether a page may differ from what it was when this was last asked."""
        if not self._dirty and self.now - self._told_at < _ANYHOW_S:
            return False
        self._dirty, self._told_at = False, self.now
        return True

    def page(self, client: Client) -> dict[str, Any]:
        """What this client is shown now; see `shape.page`."""
        admission, now = self._admission, self.now
        seats = tuple(admission.seats())
        self.history.only({one.info.uid for one in seats}, now)
        names = admission.models(now, client)
        known = Known(
            now=now,
            seats=seats,
            names=names,
            waiting={
                model: Waiting(number, admission.left(model, now))
                for model, number in admission.waiting().items()
            },
            rates=self.rates.now(now, names),
            history=self.history,
        )
        return page(self._scene(), known, client)

    def spans(self, client: Client, after: int, last: int) -> list[dict[str, Any]]:
        """What the timeline shows, of the spans with these numbers."""
        some = (one for one in self.history.spans(after) if one.number <= last)
        return spans(self._scene(), some, client)
