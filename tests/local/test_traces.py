"""A box's spans: of a request, and of the park and the wake that it waited for, in one trace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tests.kit.collector import Collector, attributes
from tests.local.conftest import Box, eventually

if TYPE_CHECKING:
    import pytest

ROOT = "POST /v1/chat/completions"


def test_a_request_and_the_swap_that_it_waits_for_are_one_trace(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.has("a")
    box.has("b")
    box.keys["traces"] = True
    with Collector(monkeypatch) as collector:
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_BSP_SCHEDULE_DELAY", "NO_PROXY"):
            box.environment[name] = os.environ[name]
        box.start()
        for name in "aba":
            box.ask(name)
        eventually(lambda: _of(collector, "wake") and len(_of(collector, ROOT)) == 3)
        (wake,) = _of(collector, "wake")
        assert attributes(wake)["kyb.seat"] == "box/a"
        (request,) = [one for one in _of(collector, ROOT) if one.trace_id == wake.trace_id]
        (queue,) = [one for one in _of(collector, "queue") if one.trace_id == wake.trace_id]
        assert queue.parent_span_id == request.span_id
        assert wake.parent_span_id == queue.span_id
        assert attributes(request)["gen_ai.request.model"] == "a"
        parks = [one for one in _of(collector, "park") if one.trace_id == wake.trace_id]
        assert [attributes(one)["kyb.seat"] for one in parks] == ["box/b"]
        assert collector.services == {"kyb-proxy", "kyb-agent"}
        assert box.end() == 0


def test_without_the_key_nothing_is_sent(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.has("a")
    with Collector(monkeypatch) as collector:
        box.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
        box.start()
        box.ask("a")
        assert box.end() == 0
    assert collector.every == []


def _of(collector: Collector, name: str) -> list[Any]:
    return [one for one in collector.every if one.name == name]
