"""What seats go through, as a collector gets it: whose traces it belongs to, and how it ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from kybernate.types import SeatState
from nodeagent.app.spans import Spans
from tests.kit.collector import Collector, attributes

TRACE, WAITS = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{WAITS}-01"


async def test_a_traced_request_has_the_wake_and_what_made_room_for_it(rig, proxy, monkeypatch):
    with Collector(monkeypatch) as collector:
        r = rig(min_residency_s=0.0, idle_after_s=0.0)
        spans = Spans(r.node, "n1")
        r.node.observe(spans)
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, SeatState.ACTIVE)
        p = proxy(r.loop)
        p.traces[a] = PARENT
        p.request(a)
        await r.until(a, SeatState.ACTIVE)
        await asyncio.sleep(0.2)
        p.request(b)
        await r.until(b, SeatState.ACTIVE)
        spans.close()
    assert collector.services == {"kyb-agent"}
    found = {
        (span.name, attributes(span)["kyb.pod"])
        for span in collector.every
        if span.trace_id.hex() == TRACE and span.parent_span_id.hex() == WAITS
    }
    assert found == {("drain", "default/b"), ("park", "default/b"), ("wake", "default/a")}
    alone = [span for span in collector.every if span.trace_id.hex() != TRACE]
    assert {"drain", "park", "wake"} <= {span.name for span in alone}
    assert not any(span.parent_span_id for span in alone)
    for span in collector.every:
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.status.code == 0
    wake = next(
        one for one in collector.every if one.trace_id.hex() == TRACE and one.name == "wake"
    )
    said = attributes(wake)
    assert (said["kyb.became"], said["kyb.seat"]) == (
        "active",
        f"n1/{r.node.seats[a].identity.name}",
    )
    assert said["kyb.all_ms"] >= 0


async def test_a_park_that_was_undone_is_an_error(rig, proxy, monkeypatch):
    with Collector(monkeypatch) as collector:
        r = rig(min_residency_s=0.0, idle_after_s=0.0)
        spans = Spans(r.node, "n1")
        r.node.observe(spans)
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, SeatState.ACTIVE)
        collector.every.clear()
        r.machine.faults.add("checkpoint-refused")
        proxy(r.loop).request(a)
        await r.until(a, SeatState.ACTIVE, 60.0)
        spans.close()
    parks = [one for one in collector.every if one.name == "park"]
    undone = [one for one in parks if attributes(one)["kyb.became"] == "active"]
    assert undone
    assert {one.status.code for one in undone} == {2}


async def test_what_a_proxy_sends_that_is_no_trace_does_no_harm(rig, proxy, monkeypatch):
    with Collector(monkeypatch) as collector:
        r = rig(min_residency_s=0.0, idle_after_s=0.0)
        spans = Spans(r.node, "n1")
        r.node.observe(spans)
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, SeatState.ACTIVE)
        p = proxy(r.loop)
        p.traces[a] = "nonsense\n"
        p.request(a)
        await r.until(a, SeatState.ACTIVE)
        spans.close()
    wakes = [one for one in collector.every if one.name == "wake"]
    assert wakes
    assert not any(one.parent_span_id for one in wakes)


def test_without_the_library_the_setting_is_refused_and_nothing_else_needs_it():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from types import SimpleNamespace as some\n"
        "from kybernate.errors import ConfigError\n"
        "from nodeagent.app.wiring import traced\n"
        "assert traced(None, some(traces=False)) is None\n"
        "try: traced(None, some(traces=True, node='n'))\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kybernate[traces]'" in done.stdout
