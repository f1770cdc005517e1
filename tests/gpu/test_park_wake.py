"""The checks on a real driver, under pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gpu.checks import CHECKS, SkippedError, require_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_a_real_driver(check: Callable[[str], str]) -> None:
    try:
        print(check(require_gpu()))
    except SkippedError as error:
        pytest.skip(str(error))
