"""Two replicas over one SQLite file; tests/integration/registry does the same over PostgreSQL."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.registry.conftest import MEMORY
from tests.unit.registry.lineages import Lineages
from tests.unit.registry.replica import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = int(os.environ.get("KYB_LINEAGES", "50"))


class OverSqlite(Lineages):
    """A new file for each example."""

    def url(self) -> str:
        if not hasattr(self, "folder"):
            self.folder = tempfile.mkdtemp(prefix="kyb-registry-", dir=MEMORY)
        return url_of(Path(self.folder))

    def finish(self) -> None:
        shutil.rmtree(self.folder)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Each killed call is logged as a mistake of ours."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_one_writer_and_one_successor_whatever_comes() -> None:
    run_state_machine_as_test(
        OverSqlite, settings=settings(max_examples=EXAMPLES, stateful_step_count=12)
    )
