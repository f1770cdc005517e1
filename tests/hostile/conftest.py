"""A real API server with config/ applied, our webhook as a process beside it, and containers."""

from __future__ import annotations

from tests.cluster.fixtures import control_plane
from tests.integration.criu.conftest import node, seat
from tests.integration.hooks import webhook
from tests.integration.webhook.conftest import gpu_node, namespace

__all__ = ["control_plane", "gpu_node", "namespace", "node", "seat", "webhook"]
