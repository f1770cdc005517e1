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
    from collections.abc import Callable, Iterator

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_report_header"]

TESTS = Path(__file__).parent
UNIT, DOCS = TESTS / "unit", TESTS / "unit" / "docs"
QUICK = (UNIT, TESTS / "integration", TESTS / "local")
"""What `make test` runs."""

# How long an example takes is up to whatever else this machine does.
settings.register_profile(
    "kybernate", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("kybernate")

# Of what is collected nothing is garbage, and looking for some is a third of the time.
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -k of one word, or of some with `and` between, what has one of them neither in path nor
    in text is not even read: that takes longer than most of what words select."""
    words = config.getoption("keyword").lower().split(" and ")
    quick = any(one in collection_path.parents for one in QUICK)
    if not (quick and all(map(str.isidentifier, words))):
        return None
    if collection_path.is_file() and collection_path.suffix != ".py":
        return None
    telling = tuple(_telling(collection_path))
    there = (any(_has(word, one) for one in telling) for word in words)
    return None if all(there) else True


def _telling(path: Path) -> Iterator[Path]:
    """Whose words select tests of the path: its own, of tests that aren't of units those of its
    folder, too, and of those of docs the pages', after which they are named."""
    if path.is_dir():
        yield from path.rglob("*.py")
    else:
        yield from [path] if UNIT in path.parents else path.parent.glob("*.py")
    if DOCS in (path, *path.parents):
        yield TESTS.parent / "Makefile"
        yield from (TESTS.parent / "docs").rglob("*.md")


@functools.cache
def _has(word: str, path: Path) -> bool:
    return word in str(path.relative_to(TESTS.parent)).lower() or word in path.read_text().lower()


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
