"""Asking in a seat's network namespace, from a thread that enters it and ends there."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from kybernate.adapters.arrivals.sockdiag import CLOSE_WAIT, ESTABLISHED, Diag, open_diag
from kybernate.adapters.kernel.nodespace import enter
from kybernate.errors import DeadlineError
from kybernate.lib.deadline import CALL_S
from kybernate.lib.netns import take_sys_admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.arrivals.sockdiag import InetRow

T = TypeVar("T")

_ANSWER = 2.0


class Network:
    """A process's network namespace, entered at the first question; close it soon.

    Questions raise FileNotFoundError if the process is gone, OSError, DeadlineError.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._diag: Diag | None = None

    async def diag(self) -> Diag:
        """Quick questions."""
        if self._diag is None:
            self._diag = await inside(
                self._pid, lambda: open_diag(_ANSWER), Diag.close, anywhere=True
            )
        return self._diag

    async def unaccepted(self) -> list[InetRow]:
        """Connections that no process holds: most wait to be accepted.

        The kernel walks the table of the whole machine's connections for it: 1 to 30 ms.
        """
        return await inside(self._pid, _unaccepted, anywhere=True)

    def close(self) -> None:
        """Let go of it; idempotent."""
        if self._diag is not None:
            self._diag.close()


def _unaccepted() -> list[InetRow]:
    diag = open_diag(_ANSWER)
    try:
        rows = diag.inet(socket.IPPROTO_TCP, (ESTABLISHED, CLOSE_WAIT))
    finally:
        diag.close()
    return [row for row in rows if not row.inode]


async def inside(
    pid: int,
    call: Callable[[], T],
    drop: Callable[[T], None] = lambda _: None,
    *,
    anywhere: bool = False,
) -> T:
    """What `call` returns in the namespace; `drop` ends a result that nobody waits for. Raises
    RefusedError if it is the node's, unless the call works `anywhere`: it looks, or takes back."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if not answer.done():
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(cast("T", result))
        elif error is None:
            drop(cast("T", result))

    def run() -> None:
        result, problem = None, None
        try:
            take_sys_admin()
            enter(pid, anywhere=anywhere)
            result = call()
        except Exception as error:  # noqa: BLE001 - all of it is the caller's
            problem = error
        with suppress(RuntimeError):  # the agent has ended
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=run, name=f"network-of-{pid}", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, CALL_S)
    except TimeoutError as error:
        raise DeadlineError(f"its network did not answer in {CALL_S:g} s") from error
