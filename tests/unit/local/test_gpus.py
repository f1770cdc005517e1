"""What a box without GPUs, or with a driver that can't park, is told."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.errors import DriverError, RefusedError
from kybernate.local.serve import devices


class Nvml:
    """Answers one question so."""

    def __init__(self, answer, driver="580.95.05"):
        self._answer, self._driver = answer, driver

    def driver_versions(self):
        return self._driver, "13.0"

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


@pytest.mark.parametrize("driver", ["565.57.01", "470.256.02", "unknown"])
def test_a_driver_that_cannot_park_is_refused_with_its_version_and_the_one_needed(driver):
    with pytest.raises(RefusedError, match=f"driver {driver} can't park.* 570 .*580.*--simulate"):
        asyncio.run(devices(Nvml(("a GPU",), driver)))


def test_the_oldest_driver_that_parks_is_taken():
    assert asyncio.run(devices(Nvml(("a GPU",), "570.86.15"))) == ("a GPU",)
