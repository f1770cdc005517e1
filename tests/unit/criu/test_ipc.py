"""Which System V shared memory goes with a tree: what it really has attached."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.adapters.criu.checks import ipc
from kybernate.adapters.criu.net import network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs System V shared memory")

NOWHERE = 2_000_000_007
MAP = "7f0000000000-7f0000001000 rw-s 00000000 00:01 {} /SYSV00000000 (deleted)\n"

libc = ctypes.CDLL(None, use_errno=True)


def is_there(number: int) -> bool:
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return any(int(row.split()[1]) == number for row in rows)


@pytest.fixture
def segments() -> Iterator[list[int]]:
    numbers = [libc.shmget(0, 4096, 0o1600) for _ in range(2)]
    assert min(numbers) >= 0
    yield numbers
    for number in numbers:
        libc.shmctl(number, 0, None)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A container whose tree has these numbers mapped, in the namespace of this test."""

    def make(*numbers: int) -> Any:
        (tmp_path / "7").mkdir()
        (tmp_path / "7/maps").write_text("".join(map(MAP.format, numbers)))
        return SimpleNamespace(proc=tmp_path, init=1, pids=lambda: [7], tree=lambda: None)

    monkeypatch.setattr(network, "inside", lambda _pid, call, _kind: call())
    return make


def test_what_is_attached_goes_and_nothing_else(
    segments: list[int], tree: Callable[..., Any]
) -> None:
    ipc.remove(tree(segments[0]))
    assert list(map(is_there, segments)) == [False, True]


def test_a_file_with_the_name_of_a_segment_is_none(
    segments: list[int], tree: Callable[..., Any]
) -> None:
    assert segments
    one = tree(NOWHERE)
    assert not ipc.is_in_use(one)
    assert list(ipc.problems(one)) == []
    ipc.remove(one)


def test_one_that_goes_meanwhile_is_no_error(
    tree: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["0", str(NOWHERE), "600", "4096", "1", "1", "1"]]
    monkeypatch.setattr(ipc, "_tables", lambda _: {"shm": rows, "sem": [], "msg": []})
    ipc.remove(tree(NOWHERE))
