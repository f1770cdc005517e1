"""Keys of the kernel's: what came back in a container must not have the agent's, nor others'."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING

import pytest

from tests.kit.node.containers import wait_for
from tests.kit.node.programs import python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.hostile

ADD_KEY, KEYCTL, JOIN, SEARCH, SESSION = 248, 250, 1, 10, -3
"""System calls on x86-64, and what is asked of keyctl(2)."""
PROGRAM = f"""
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
print("ready")
while not os.path.exists("/app/look"):
    time.sleep(0.01)
print("added", libc.syscall({ADD_KEY}, b"user", NAME, b"theirs", 6, {SESSION}))
while True:
    time.sleep(1)
"""


def has(name: bytes) -> bool:
    """Whether this process, which stands for the agent, has such a key in its session: an agent in
    a container has one of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(KEYCTL, SEARCH, SESSION, b"user", name, 0) >= 0:
        return True
    assert ctypes.get_errno() == errno.ENOKEY
    return False


def test_what_comes_back_has_no_key_of_the_agents_and_gives_it_none(
    seat: Callable[..., Seat], tmp_path: Path
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(KEYCTL, JOIN, None) < 0:
        pytest.skip("this kernel has no keyrings")
    name = f"kyb-{tmp_path.name}".encode()
    assert not has(name)
    one = python(seat, tmp_path, PROGRAM.replace("NAME", repr(name)))
    one.park()
    one.resume()
    (tmp_path / "look").touch()
    wait_for(lambda: "added" in one.container.log, lambda: one.container.log)
    assert "added -1" not in one.container.log
    assert not has(name), "what it keeps as its own lies in the agent's session"
