"""Moves that came to nothing, of which the other node is yet to hear: what came there may go then.

`calloff/<uid>/<successor's uid>` in the journal is there from the end of such a move until the
other node's agent has answered, however many agents that takes, or nobody will ever answer: the
successor's pod is gone, and with it, after a while, what came for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kybernate.core.migration.notes import MoveNote, note_of
from kybernate.errors import KybernateError, NotFoundError, RefusedError
from kybernate.lib.deadline import CALL_S
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.lib.retry import Pauses
from nodeagent.migration.journal import handover_of
from nodeagent.offload.departures import see_there

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from kybernate.ports import Handover, Journal, Peers

log = logging.getLogger(__name__)

CALL_OFF = "calloff/"
"""Journal keys of moves that are yet to be called off, by the UIDs of pod and successor."""

_PAUSES = Pauses(1.0, 60.0)
"""Seconds between two tries: the first, doubled up to the second."""


class CallOffs:
    """All of this node's. `aside` runs what nobody waits for. Lives on the loop."""

    def __init__(
        self,
        journal: Journal,
        peers: Peers,
        aside: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self._journal = journal
        self._peers = peers
        self._aside = aside
        self._owed: dict[str, Handover] = {}
        self._calls: KeyedLocks[str, asyncio.Lock] = KeyedLocks(asyncio.Lock)

    def load(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """What the last agent was yet to tell is told."""
        for key, record in records.items():
            if key.startswith(CALL_OFF):
                self._owed[key] = to = handover_of(note_of(record))
                self._aside(self.tell(to))

    def owe(self, to: Handover) -> None:
        """Noted: from now on no agent's death has it forgotten. `tell` comes next."""
        self._owed[_key(to)] = to
        note = MoveNote("", to.pod, to.successor, to.node)
        self._journal.put(_key(to), note.record(), synced=False)

    async def tell(self, to: Handover) -> None:
        """Told once when this returns; if nobody heard it, it is told again and again."""
        if not await self._heard(to):
            self._aside(self._again(to))

    async def withdraw(self, to: Handover) -> None:
        """The same pod is moved to the same successor again: what comes there from now on must not
        be dropped. A call that is under way has ended when this returns."""
        async with self._calls[_key(to)]:
            self._forget(to)

    async def _again(self, to: Handover) -> None:
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            if await self._heard(to) or await self._is_gone(to):
                return

    async def _heard(self, to: Handover) -> bool:
        """Whether nobody is to be told any more."""
        async with self._calls[_key(to)]:
            if self._owed.get(_key(to)) != to:
                return True
            try:
                await self._peers.call_off(to, CALL_S)
            except (RefusedError, NotFoundError) as error:
                log.info("the move of %s is called off, and nobody hears it: %s", to.pod, error)
            except (KybernateError, OSError) as error:
                log.warning("the move of %s can't be called off yet: %s", to.pod, error)
                return False
            self._forget(to)
            return True

    async def _is_gone(self, to: Handover) -> bool:
        try:
            await see_there(self._peers, to, CALL_S)
        except RefusedError:
            await self.withdraw(to)
            return True
        except (KybernateError, OSError):
            return False
        return False

    def _forget(self, to: Handover) -> None:
        if self._owed.pop(_key(to), None) is not None:
            self._journal.delete(_key(to))


def _key(to: Handover) -> str:
    return f"{CALL_OFF}{to.pod.uid}/{to.successor.uid}"
