"""The connection to a process 1 that speaks nonsense, or doesn't read."""

from __future__ import annotations

import socket
import tempfile
import threading
from pathlib import Path

from sidecar.link import Link
from tests.unit.sidecar.conftest import LIMIT, until


def test_what_is_not_the_protocol_is_a_hang_up_and_not_the_end(world):
    world.first.send("state", "active", "9" * 400, "0", "")
    heard = ["waiting", "lost", "waiting"]
    until(lambda: world.link.told == heard, "the link does not connect again")
    world.state("parked")


def test_a_process_1_that_does_not_read_is_hung_up_on_and_nobody_waits():
    with tempfile.TemporaryDirectory(prefix="kyb-") as folder, socket.socket(socket.AF_UNIX) as one:
        one.bind(str(Path(folder) / "init.sock"))
        one.listen()
        one.settimeout(LIMIT)
        link = Link(one.getsockname(), "none", lambda *_: None)
        link.start()
        first, _ = one.accept()
        until(lambda: link.turn("acquire"), "the link does not connect")
        told = threading.Event()

        def flood():
            while link.turn("acquire"):
                continue
            told.set()

        threading.Thread(target=flood, daemon=True).start()
        assert told.wait(LIMIT), "who gives hints waits for process 1"
        with link.changes():
            again, _ = one.accept()
        with first, again:
            assert again.recv(64).endswith(b"watch\x001\0none")
