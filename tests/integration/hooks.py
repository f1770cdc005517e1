"""One webhook for all tests of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kit.servers.webhookserver import Webhook, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

__all__ = ["Webhook", "until", "webhook"]


@pytest.fixture(scope="session")
def webhook(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """A webhook that keeps its certificates in the Secret."""
    found = Webhook(control_plane, tmp_path_factory.mktemp("webhook"))
    found.start()
    yield found
    found.stop()
