"""Whether this process may bind now: by the Lease of the kube-scheduler beside it."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from kybernate.errors import RetryableError
from kybernate.runtime.lead import boot_clock, read_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.runtime.lead import Knowledge, Leases

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0
"""Seconds for which the scheduler's lease is taken to be as it was: a second change of holder
takes longer, since each of them waits for a lease to end or a process to start."""

POLL = 0.01


class SchedulerLease:
    """The election of the kube-scheduler in the same pod decides; we only look.

    Its identity begins with the pod's host name, which is ours too.
    """

    def __init__(
        self,
        leases: Leases,
        name: str,
        host: str,
        knowledge: Knowledge,
        wait: float,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """`wait` is how many seconds a bind waits for the ledger, once per change of leader."""
        self._leases = leases
        self._name = name
        self._host = host
        self._knowledge = knowledge
        self._wait = wait
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._holder = ""
        self._knows: Callable[[], bool] = lambda: False

    def closed(self) -> None:
        """Calls are answered: the scheduler makes none unless it leads."""

    def check(self) -> None:
        """Raise RetryableError unless our scheduler leads and the ledger knows its forerunner's."""
        with self._lock:
            if self._clock() >= self._looked + LOOK_EVERY:
                self._look()
        deadline = self._clock() + self._wait
        while not self._knows():
            if self._clock() >= deadline:
                raise RetryableError(
                    "the scheduler has just begun to lead, and what the last one bound is still "
                    "being listed"
                )
            time.sleep(POLL)

    def _look(self) -> None:
        began = self._clock()
        raw = self._leases.read(self._name)
        holder = read_lease(raw).holder if raw else ""
        if not holder.startswith(f"{self._host}_"):
            self._holder = ""
            raise RetryableError(
                f"the scheduler of {self._host} does not lead: {holder or 'nobody'} holds the "
                f"lease {self._name}"
            )
        if holder != self._holder:
            self._knows = self._knowledge.refresh()
            self._holder = holder
            log.info("the scheduler leads as %s", holder)
        self._looked = began
