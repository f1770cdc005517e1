"""The registry's client put together from the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.artifacts.reporting import ReportingVault
from nodeagent.artifacts.reports import ReportQueue

if TYPE_CHECKING:
    from kybernate.runtime.identity import Identity
    from kybernate.settings.agent import AgentSettings
    from nodeagent.seat.node import World


def with_registry(
    world: World, settings: AgentSettings, identity: Identity
) -> tuple[World, ReportQueue | None]:
    """The same world, with the registry if there is one to be told of artifacts, and what tells
    it. Raises ConfigError."""
    offloading = world.offloading
    if offloading is None or not settings.registry_url:
        return world, None
    from kybernate.adapters.registry.node import NodeRegistry  # noqa: PLC0415 - slow

    registry = NodeRegistry(settings.registry_url, identity, settings.object_store)
    reports = ReportQueue(world.journal, registry, offloading.vault.manifest)
    told = replace(offloading, vault=ReportingVault(offloading.vault, reports))
    return replace(world, offloading=told, registry=registry), reports
