"""What was on the GPUs is in place when a lazy restore returns, and all else comes by and by."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from nodeagent.offload.images.first import first_of
from tests.kit.node import mortal
from tests.kit.node.taken import MIB, PAGE, Sizes, Taking

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration

TAKEN, REST = 64, 512
TAKEN_PAGES, REST_PAGES = TAKEN * MIB // PAGE, REST * MIB // PAGE


@pytest.fixture(params=[False, True], ids=["lowest", "highest"])
def taking(
    request: pytest.FixtureRequest,
    seat: Callable[..., Seat],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Taking:
    sizes = Sizes(TAKEN, REST, highest=request.param)
    return Taking(seat, tmp_path, tmp_path_factory.mktemp("notes"), sizes)


def test_the_gpus_pages_are_there_before_it_runs(taking: Taking) -> None:
    one = taking.seat
    one.park()
    assert TAKEN * MIB <= first_of(one.images) < (TAKEN + 16) * MIB
    with mortal.agent(one) as server:
        assert taking.present(taking.taken, TAKEN) == TAKEN_PAGES
        assert taking.present(taking.rest, REST) < REST_PAGES
    one.criu = one.another_agent()
    os.kill(server, signal.SIGCONT)
    one.thaw()
    one.pages_done()
    assert taking.present(taking.rest, REST) == REST_PAGES
    assert taking.is_right()


@pytest.mark.parametrize("lazy", [False, True])
def test_its_memory_is_the_same_either_way(taking: Taking, lazy: bool) -> None:
    taking.seat.park()
    taking.seat.resume(lazy=lazy)
    assert taking.is_right()
    taking.seat.pages_done()
    assert taking.is_right()
