"""Other ends of unix sockets are asked for only where there is a unix socket, or may be one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kybernate.adapters.criu import sockets
from kybernate.adapters.criu.container import Container

GONE = 1 << 20
"""The number of no descriptor."""


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(os.getpid(), tmp_path / "handle", 0, tmp_path, Path("/proc"))


def _inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def test_a_unix_socket_that_leads_out_is_told(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = socket.socketpair()
    with one, other:
        ends = {_inode(one): _inode(other), _inode(other): _inode(one)}
        monkeypatch.setattr(sockets, "_unix_peers", lambda _: ends)
        held = {_inode(one): (os.getpid(), one.fileno())}
        (told,) = sockets.problems(container, held)
        assert "outside its own tree" in told
        held[_inode(other)] = (os.getpid(), other.fileno())
        assert not list(sockets.problems(container, held))


@pytest.mark.parametrize(("known", "asked"), [(True, 0), (False, 1)])
def test_who_has_none_is_not_asked_about(
    container: Container, monkeypatch: pytest.MonkeyPatch, known: bool, asked: int
) -> None:
    asks = []
    monkeypatch.setattr(sockets, "_unix_peers", lambda one: asks.append(one) or {})
    with socket.socket() as one:
        held = {_inode(one): (os.getpid(), one.fileno() if known else GONE)}
        assert not list(sockets.problems(container, held))
    assert len(asks) == asked
