"""The connection to process 1 of the seat's container, in a thread of its own.

Frames as on docs/reference/node/kyb-init.md: 4 bytes of big-endian length, then fields, joined by
NUL.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sidecar.verdict import LOST, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEADER = struct.Struct(">I")
_FRAME_LIMIT = 1024
_SENTENCE_LIMIT = 160
_RETRY = (0.02, 0.25)


class Link:
    """Knows the seat's state, and says when it changes. Any thread may use it.

    `on_cooperate(phase, seconds)` is called when the agent asks the workload to do its part.
    """

    def __init__(self, path: str, mode: str, on_cooperate: Callable[[str, float], None]) -> None:
        self._path = path
        self._mode = mode
        self._on_cooperate = on_cooperate
        self._view = View()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._connection: socket.socket | None = None
        self._known = threading.Event()
        self._watchers: set[int] = set()
        self._progress = ""

    def start(self) -> None:
        """Connect, and continue connecting, for as long as the process lives."""
        threading.Thread(target=self._run, name="link", daemon=True).start()

    def view(self, patience: float = 0.0) -> View:
        """The seat now; waits up to `patience` (s) for the first word of process 1."""
        if patience:
            self._known.wait(patience)
        return self._view

    @contextmanager
    def changes(self) -> Iterator[int]:
        """A descriptor that is readable once the seat's view has changed."""
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with self._lock:
            self._watchers.add(event)
        try:
            yield event
        finally:
            with self._lock:
                self._watchers.discard(event)
            os.close(event)

    def serves(self) -> None:
        """The workload has answered a probe well."""
        if not self._view.serves:
            self._send("serves")

    def progress(self, sentence: str) -> None:
        """How far the workload is with its start; the agent shows it."""
        if sentence != self._progress:
            self._progress = sentence
            self._send("progress", sentence[:_SENTENCE_LIMIT])

    def turn(self, hint: str) -> bool:
        """`acquire` or `yield`, for the agent; whether process 1 could be told."""
        return self._send("turn", hint)

    def cooperated(self, phase: str, sentence: str, *, done: bool) -> None:
        """The workload's answer to the agent's question."""
        self._send("cooperated", phase, "done" if done else "failed", sentence[:_SENTENCE_LIMIT])

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _RETRY[0]
        while True:
            try:
                self._serve()
                pause = _RETRY[0]
            except Exception as error:  # noqa: BLE001 - without this thread its view never changes
                pause = min(pause * 1.5, _RETRY[1])
                if pause == _RETRY[1]:
                    # A process 1 of another release may have no socket: its workload is asked.
                    self._known.set()
                if self._view.state not in ("", LOST) and not isinstance(error, FileNotFoundError):
                    why = f"process 1 of the seat's container has hung up: {error}"
                    self._set(View(LOST, sentence=why))
            time.sleep(pause)

    def _serve(self) -> None:
        """Serve one connection. That it ends says nothing: process 1 closes its socket, too, while
        an image of its container is taken, and what it told last holds until it is back. Raises
        FileNotFoundError meanwhile, and ConnectionRefusedError once it has died: it leaves a socket
        that nobody listens at."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            with self._sending:
                self._connection = connection
            try:
                self._send("watch", "1", self._mode)
                for fields in _frames(connection):
                    self._on_frame(fields)
            except ConnectionError:
                return  # an end as well: something of ours was not read
            finally:
                with self._sending:
                    self._connection = None

    def _on_frame(self, fields: list[str]) -> None:
        if fields[0] == "state" and len(fields) == 5:
            _, state, age, serves, sentence = fields
            started = None if age == "-" else time.monotonic() - int(age) / 1000
            self._set(View(state, started, serves == "1", sentence))
        elif fields[0] == "cooperate" and len(fields) == 3:
            self._on_cooperate(fields[1], int(fields[2]) / 1000)
        elif fields[0] == "refuse":
            sys.stderr.write(f"kyb-sidecar: process 1 refused: {' '.join(fields[1:])}\n")

    def _set(self, view: View) -> None:
        before, self._view = self._view, view
        self._known.set()
        if before.state != view.state:
            self._progress = ""
            sys.stderr.write(f"kyb-sidecar: {view.state}: {view.sentence}\n")
        with self._lock:
            for event in self._watchers:
                os.eventfd_write(event, 1)

    def _send(self, *fields: str) -> bool:
        payload = "\0".join(fields).encode()
        frame = _HEADER.pack(len(payload)) + payload
        with self._sending:
            connection = self._connection
            if connection is None:
                return False
            sent = 0
            with suppress(OSError):
                sent = connection.send(frame, socket.MSG_DONTWAIT)
            if sent == len(frame):
                return True
            # A process 1 that is frozen reads nothing: it is hung up on, and nobody waits for it.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            return False


def _frames(connection: socket.socket) -> Iterator[list[str]]:
    """The frames that come, until the peer hangs up. Raises OSError on one that is too long."""
    data = b""
    while True:
        while len(data) >= 4:
            (length,) = _HEADER.unpack_from(data)
            if length > _FRAME_LIMIT:
                raise OSError(f"a frame of {length} bytes")
            if len(data) < 4 + length:
                break
            yield data[4 : 4 + length].decode(errors="replace").split("\0")
            data = data[4 + length :]
        part = connection.recv(4096)
        if not part:
            return
        data += part
