"""Other ends of unix sockets are asked for only where there is a unix socket, or may be one."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from kybernate.adapters.criu.container import Container
from kybernate.adapters.criu.net import sockets

GONE = 1 << 20
"""The number of no descriptor."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter a network namespace")
needs_mptcp = pytest.mark.skipif(
    not Path("/proc/sys/net/mptcp/enabled").exists(), reason="this kernel has no MPTCP"
)


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


def _held(*those: socket.socket) -> dict[int, tuple[int, int]]:
    return {_inode(one): (os.getpid(), one.fileno()) for one in those}


@needs_root
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_one_whose_other_end_is_closed_leads_nowhere(
    container: Container, kind: socket.SocketKind
) -> None:
    """Every JVM has one, for sockets that it closes while another thread reads."""
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    with one, other:
        (told,) = sockets.problems(container, _held(one))
        assert "outside its own tree" in told, "the other end is open, and not in the tree"
        other.close()
        assert not list(sockets.problems(container, _held(one)))


@needs_root
def test_one_that_nobody_has_accepted_leads_to_its_listener(
    container: Container, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(str(tmp_path / "s"))
        assert not list(sockets.problems(container, _held(client, listener)))
        (told,) = sockets.problems(container, _held(client))
        assert "outside its own tree" in told


@needs_mptcp
@pytest.mark.parametrize("beside", [0, sockets.FEW + 1], ids=["few", "many"])
def test_mptcp_is_told_with_what_to_do(container: Container, beside: int) -> None:
    """Also where so many are there that the kernel's tables are read, which take it for TCP."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(_listener(socket.IPPROTO_TCP)) for _ in range(beside + 1)]
        assert not list(sockets.problems(container, _held(*listeners)))
        found = stack.enter_context(_listener(socket.IPPROTO_MPTCP))
        (told,) = sockets.problems(container, _held(*listeners, found))
        assert "GODEBUG=multipathtcp=0" in told


def _listener(protocol: int) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    one.bind(("127.0.0.1", 0))
    one.listen()
    return one
