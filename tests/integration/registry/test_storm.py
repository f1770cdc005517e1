"""Two replicas killed in turn under load, briefly: bench.saved.registry does it for longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.saved.registry.storm import Storm
from tests.integration.registry.conftest import new_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.servers.registryserver import Server

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("replicas", [1, 2])
def test_no_answer_is_wrong_whoever_is_killed(
    start: Callable[..., Server], request: pytest.FixtureRequest, tmp_path: Path, replicas: int
) -> None:
    if replicas == 1:
        url = f"sqlite:///{tmp_path}/registry.db"
    else:
        server: Any = request.getfixturevalue("postgresql")
        url = new_database(server)
    servers = [start(url) for _ in range(replicas)]
    servers[0].client().settle("new")
    storm = Storm(servers)
    storm.run(workers=3, kills=2, between_s=1.0)
    assert (storm.kills, dict(+storm.wrong)) == (2, {})
    assert storm.stories > 3


def test_a_storm_would_tell(start: Callable[..., Server], tmp_path: Path) -> None:
    """Of a registry where somebody else interferes: claims that are known nowhere."""
    servers = [start(f"sqlite:///{tmp_path}/{number}.db") for number in range(2)]
    for one in servers:
        one.client().settle("new")
    # Two databases pass for one.
    storm = Storm(servers)
    storm.run(workers=1, kills=0, between_s=2.0)
    assert sum(storm.wrong.values()) > 0
