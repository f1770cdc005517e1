"""A control plane for who installs Kybernate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.cluster import running
from tests.cluster.fixtures import of_worker
from tests.cluster.spec import ClusterSpec
from tests.integration.overlays.installation import installed, reader  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

BARE = ClusterSpec(name="kybhelm", control_plane_only=True, services=frozenset(), overlay=None)


@pytest.fixture(scope="session")
def bare() -> Iterator[Cluster]:
    """A control plane on which nothing of ours is; each test leaves it so."""
    with running(of_worker(BARE), print) as up:
        yield up
