"""gunicorn's threaded worker, on whose connections the next call is waited for a little.

The kube-scheduler asks again within milliseconds on the same connection. Handing it to the poller
and back to a thread in between costs more than most calls do.
"""

from __future__ import annotations

import select
import threading
from typing import Any

from kybernate.runtime.deadlines import Worker

LINGER_MS = 20
"""Milliseconds that a thread waits for a connection's next call."""


class LingeringWorker(Worker):
    """At most half of the threads wait so, and none while connections wait for a thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = threading.BoundedSemaphore(max(1, self.cfg.threads // 2))

    def handle(self, conn: Any) -> Any:
        """Answer the connection's calls as long as one follows another. Called by gunicorn."""
        while True:
            kept = super().handle(conn)
            # False and gunicorn's sentinel for "nothing came" go back as they are.
            if kept is not True or not self._another(conn.sock):
                return kept

    def _another(self, sock: Any) -> bool:
        if not self.alive or self.tpool._work_queue.qsize():  # noqa: SLF001 - it has no other way
            return False
        if not self._places.acquire(blocking=False):
            return False
        try:
            # What TLS has read already shows on no descriptor.
            if getattr(sock, "pending", int)():
                return True
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return bool(poll.poll(LINGER_MS))
        finally:
            self._places.release()
