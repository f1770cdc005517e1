"""A real API server with config/ applied, and our webhook as a process beside it."""

from __future__ import annotations

from tests.cluster.fixtures import control_plane
from tests.integration.webhook.conftest import gpu_node, namespace, webhook

__all__ = ["control_plane", "gpu_node", "namespace", "webhook"]
