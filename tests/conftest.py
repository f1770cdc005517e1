"""What all tests share."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.clock import run_virtual
from tests.slices import pytest_addoption, pytest_collection_modifyitems, pytest_report_header

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_report_header"]

UNIT = Path(__file__).parent / "unit"

# How long an example takes is up to whatever else this machine does.
settings.register_profile(
    "kybernate", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("kybernate")

# Of what is collected nothing is garbage, and looking for some is a third of the time.
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -k of one word, unit tests whose files don't have it in path or text are not even read:
    that takes longer than most of what a word selects. Not those of docs, named by what they read.
    """
    word = config.getoption("keyword").lower()
    inside = UNIT in collection_path.parents and UNIT / "docs" not in collection_path.parents
    if not word.isidentifier() or not inside or collection_path.suffix != ".py":
        return None
    has = word in str(collection_path).lower() or word in collection_path.read_text().lower()
    return None if has else True


def pytest_collection_finish() -> None:
    """What was collected lives until the end: looking for garbage in it costs 0.2 s at a time."""
    gc.collect()
    gc.freeze()
    gc.enable()


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
