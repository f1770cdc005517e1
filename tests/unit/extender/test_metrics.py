"""What Prometheus is told of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from extender.metrics import Use
from tests.unit.extender.objects import pod

if TYPE_CHECKING:
    from extender.state.snapshot import Snapshot


def told(use: Use) -> str:
    registry = CollectorRegistry()
    registry.register(use)
    return generate_latest(registry).decode()


def test_use_is_told_by_resource_and_product(snapshot: Snapshot) -> None:
    snapshot.pod_event("ADDED", pod("a", node="n1", notes={"kyb.ai/group": "G0"}))
    use = Use()
    use.set_function(snapshot.figures)
    text = told(use)
    labels = 'product="H100",resource="kyb.ai/gpu-1x-seat"'
    assert f'kyb_extender_seats{{{labels},what="total"}} 4.0' in text
    assert f'kyb_extender_seats{{{labels},what="taken"}} 1.0' in text
    assert 'kyb_extender_gpu_memory_bytes{product="H100",what="taken"} 8.58' in text
    assert "kyb_extender_free_gpus 1.6" in text
    assert "kyb_extender_fragmented_gpus 0.0" in text


def test_nothing_is_told_of_half_a_cluster() -> None:
    assert told(Use()) == ""
