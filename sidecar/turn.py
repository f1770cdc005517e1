"""One probe that the kubelet makes: its connection, the workload's, and the seat's state."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import TYPE_CHECKING

from sidecar.verdict import Verdict, judge, spared

if TYPE_CHECKING:
    from sidecar.link import Link
    from sidecar.options import Probe

HARD_LIMIT = 60.0
"""Seconds that a probe may last, whatever the kubelet's own timeout."""
_PATIENCE = 0.5
_ENOUGH = 0.8
"""Parts of the kubelet's timeout: waiting for process 1's first word, and for a workload that may
still fail."""

Socket = socket.socket


class Turn:
    """`client` is the kubelet's connection, `changed` becomes readable when the seat changes."""

    def __init__(self, client: Socket, probe: Probe, link: Link, changed: int) -> None:
        self.client = client
        self.probe = probe
        self._link = link
        self._changed = changed
        self._began = time.monotonic()

    def verdict(self) -> Verdict:
        """The answer by what is known now."""
        return judge(self.probe.role, self._link.view(self.probe.timeout * _PATIENCE))

    def sentence(self) -> str:
        """The seat's state in words."""
        view = self._link.view()
        return f"{view.state or 'unknown'}: {view.sentence}"

    def spared(self) -> bool:
        """Whether a failure of the workload counts as alive still."""
        view = self._link.view()
        return spared(self.probe.role, self.probe.grace, view, time.monotonic())

    def connect(self) -> Socket:
        """A connection to the workload's port, at the address that the kubelet called us by.

        Raises OSError, as the kubelet's own would.
        """
        host = self.client.getsockname()[0]
        if host.startswith("::ffff:"):
            host = host.removeprefix("::ffff:")
        return socket.create_connection((host, self.probe.port), timeout=self.probe.timeout)

    def wait(self, *sockets: Socket, patient: bool = False) -> frozenset[Socket | None]:
        """Those that can be read, None among them when the seat has changed.

        Empty when the kubelet's time is nearly over and a workload that may still fail has not
        answered, unless we are `patient`. Raises TimeoutError at the hard limit.
        """
        poll = select.poll()
        by_number: dict[int, Socket | None] = {one.fileno(): one for one in sockets}
        by_number[self._changed] = None
        for number in by_number:
            poll.register(number, select.POLLIN)
        hurried = not patient and self.spared()
        limit = self.probe.timeout * _ENOUGH if hurried else HARD_LIMIT
        ready = poll.poll(max(0.0, self._began + limit - time.monotonic()) * 1000)
        if not ready and not hurried:
            raise TimeoutError
        found = frozenset(by_number[number] for number, _ in ready)
        if None in found:
            os.eventfd_read(self._changed)
        return found

    def succeeded(self) -> None:
        """The workload has answered well. That it can be scraped says nothing of its health."""
        if self.probe.role == "scrape":
            return
        self._link.serves()
        self._link.progress(f"answers its {self.probe.role} probe")

    def failed(self, sentence: str) -> None:
        """The workload has not."""
        if self.probe.role != "scrape" and not self._link.view().serves:
            self._link.progress(sentence)
