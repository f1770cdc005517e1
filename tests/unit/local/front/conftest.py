"""Scenarios on the stage."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.local.front.stage import Stage

TWO = """
models:
  a: {cmd: "s ${PORT}", aliases: [gpt-4o-mini, org/a]}
  b: {cmd: "s ${PORT}"}
"""


@pytest.fixture
def play():
    """Run a scenario: an async function that takes the stage of a file, given as its text; the
    box can't run the models that it `lacks`."""

    def run(scenario, text=TWO, environ=None, lacks=()):
        async def act():
            async with asyncio.timeout(20), Stage(text, environ, lacks) as stage:
                await scenario(stage)

        asyncio.run(act())

    return run
