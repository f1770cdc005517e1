"""What a box without GPUs is told."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.errors import DriverError, RefusedError
from kybernate.local.serve import devices


class Nvml:
    """Answers one question so."""

    def __init__(self, answer):
        self._answer = answer

    def devices(self):
        return self._answer

    async def ask(self, call, _deadline):
        if isinstance(self._answer, Exception):
            raise self._answer
        return call()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (DriverError("nvmlInit", 12, "NVML Shared Library Not Found"), "Library Not Found"),
        ((), "has no GPU"),
    ],
)
def test_the_way_without_a_gpu_is_told(answer, says):
    with pytest.raises(RefusedError, match=f"{says}.*kybernate serve --simulate"):
        asyncio.run(devices(Nvml(answer)))
