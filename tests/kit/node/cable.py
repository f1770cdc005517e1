"""A network namespace with one cable to it, whose addresses nobody else has on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path

from images.cache import cache_root


def _free_net() -> str:
    """The first three numbers of addresses that nobody has here, from this process's own on. They
    are this process's until it ends: those beside it lay their cables at other times."""
    taken = Path("/proc/net/fib_trie").read_text()
    cache_root().mkdir(parents=True, exist_ok=True)
    for number in ((os.getpid() + n) % 250 for n in range(250)):
        lock = os.open(cache_root() / f".net-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if f" 10.231.{number}." not in taken:
                return f"10.231.{number}"
        os.close(lock)
    raise AssertionError("All of 10.231 is taken: remove the links kyb*h of runs that ended.")


_NET = _free_net()
HERE, THERE = f"{_NET}.1", f"{_NET}.2"
"""Of this test's process: others may run beside it, and aborted ones may have left theirs."""


def ip(*words: str) -> None:
    """`ip`, which must succeed."""
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


def lay_cable(name: str) -> None:
    """A namespace of this name, with THERE; HERE is outside."""
    ip("netns", "add", name)
    ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
    ip("addr", "add", f"{HERE}/30", "dev", f"{name}h")
    ip("link", "set", f"{name}h", "up")
    ip("-n", name, "addr", "add", f"{THERE}/30", "dev", "eth0")
    ip("-n", name, "link", "set", "eth0", "up")
    ip("-n", name, "link", "set", "lo", "up")


def take_cable(name: str) -> None:
    """What `lay_cable` made is gone."""
    for words in (("netns", "del", name), ("link", "del", f"{name}h")):
        with contextlib.suppress(subprocess.CalledProcessError):
            ip(*words)
