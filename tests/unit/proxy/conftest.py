"""Scenarios on the stage."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from kybernate.adapters.pki import Folder, Validity
from tests.unit.proxy.stage import DEADLINE, Stage


@pytest.fixture(scope="session")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    Folder(folder).init(["n1"], Validity(), datetime.now(UTC))
    return folder


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def play(runner, tls):
    """Run a scenario: an async function that takes the stage."""

    def run(scenario, **settings):
        async def act():
            async with asyncio.timeout(3 * DEADLINE), Stage(tls, **settings) as stage:
                await scenario(stage)

        runner.run(act())

    return run
