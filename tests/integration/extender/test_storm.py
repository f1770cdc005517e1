"""Leaders that are killed during a storm of binds: what the bench counts, on a smaller one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.cluster.leaders import SPEC, Storm
from tests.cluster.cluster import running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PODS, KILLS = 120, 2


# Connections to a leader that was killed are for the collector of garbage.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_pod_is_bound_once_and_the_last_leader_knows_all(tmp_path: Path) -> None:
    """On a control plane of its own: gangs of other tests must not be planned onto these nodes."""
    with running(SPEC) as cluster:
        storm = Storm(cluster, tmp_path, PODS)
        try:
            storm.run(KILLS)
            found = {name: value for name, (value, _) in storm.figures().items()}
        finally:
            storm.end()
    assert (found["pods"], found["kills"]) == (PODS, KILLS)
    for name in ("lost", "double_bound", "ledger_diff", "overfull_groups"):
        assert found[name] == 0, found
