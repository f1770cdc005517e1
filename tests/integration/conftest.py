"""One API server for all tests below; made once per session."""

from __future__ import annotations

from tests.cluster.fixtures import any_cluster, control_plane
from tests.integration.hooks import webhook

__all__ = ["any_cluster", "control_plane", "webhook"]
