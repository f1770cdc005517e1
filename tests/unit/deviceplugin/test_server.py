"""Which ID is preferred, asked of the service itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deviceplugin.board import Board
from deviceplugin.inventory import Inventory
from deviceplugin.server import SeatService
from kybernate.gen import deviceplugin_pb2

if TYPE_CHECKING:
    import pytest

FREE = ["G0-seat-1", "G1-seat-1"]


class Late:
    """An agent that hears of a pod of G1 only after so many questions."""

    def __init__(self, questions: int) -> None:
        self.questions = questions

    def awaited(self, resource: str) -> tuple[str, ...]:
        self.questions -= 1
        return () if self.questions > 0 else ("G1",)

    def prepare(self, resource: str, ids: object, deadline: float) -> str:
        raise NotImplementedError


def preferred(strategy: str, agent: Late) -> list[str]:
    board = Board()
    board.publish(Inventory(strategy=strategy))
    service = SeatService("kyb.ai/gpu-1x-seat", board, agent, 1.0)
    wish = deviceplugin_pb2.ContainerPreferredAllocationRequest(
        available_deviceIDs=FREE, allocation_size=1
    )
    request = deviceplugin_pb2.PreferredAllocationRequest(container_requests=[wish])
    answer = service.GetPreferredAllocation(request, None)  # type: ignore[arg-type]
    return list(answer.container_responses[0].deviceIDs)


def test_where_the_id_decides_an_agent_that_is_late_is_waited_for():
    assert preferred("nodes", Late(3)) == ["G1-seat-1"]


def test_with_cdi_nobody_is_waited_for():
    assert preferred("cdi", Late(3)) == ["G0-seat-1"]


def test_an_agent_that_hears_of_no_pod_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("deviceplugin.server._NEWS", 0.2)
    began = time.monotonic()
    assert preferred("nodes", Late(10**6)) == ["G0-seat-1"]
    assert 0.2 <= time.monotonic() - began < 5
