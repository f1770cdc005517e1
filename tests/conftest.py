"""What all tests share."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from kybernate.testing.clock import run_virtual
from tests.slices import pytest_addoption, pytest_collection_modifyitems, pytest_report_header

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_report_header"]

# How long an example takes is up to whatever else this machine does.
settings.register_profile(
    "kybernate", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("kybernate")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Run `async def` tests in virtual time, or by the machine's clock where marked `real_time`."""
    runs = asyncio.run if pyfuncitem.get_closest_marker("real_time") else run_virtual
    given = getattr(pyfuncitem.obj, "hypothesis", None)
    if given is not None and inspect.iscoroutinefunction(given.inner_test):
        given.inner_test = _called(given.inner_test, runs)
    elif inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _called(pyfuncitem.obj, runs)
    return (yield)


def _called(test: Callable[..., Any], runs: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(test)
    def call(*arguments: Any, **named: Any) -> None:
        runs(test(*arguments, **named))

    return call
