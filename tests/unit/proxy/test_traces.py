"""Requests as spans: whose children they are, what the seat gets, and what a collector is sent."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tests.kit.collector import Collector, attributes
from tests.unit.proxy.stage import DEADLINE

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


async def until(collector, *names):
    async with asyncio.timeout(DEADLINE):
        while not collector.spans.keys() >= set(names):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


@pytest.fixture
def traced(play, monkeypatch):
    """Run a scenario that takes the stage and a collector, with spans on."""

    def run(scenario):
        async def act(stage):
            with Collector(monkeypatch) as collector:
                stage_settings = stage.service._settings.model_copy(update={"traces": True})
                await stage.restart(stage_settings)
                await scenario(stage, collector)

        play(act)

    return run


ROOT = "POST /v1/chat/completions"


def test_a_request_that_waits_is_three_spans_of_its_callers_trace(traced):
    async def scenario(stage, collector):
        await stage.seat(granted=False)
        asked = stage.asked(headers=SAMPLED)
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        await asyncio.sleep(0.05)
        told = [one.demand.traceparent for one in stage.agent.reports if one.demand.waiting]
        stage.agent.lease("grant")
        assert (await asked)[0] == 200
        await until(collector, ROOT, "queue", "model")
        root, queue, model = (collector.spans[name] for name in (ROOT, "queue", "model"))
        assert {span.trace_id.hex() for span in (root, queue, model)} == {TRACE}
        assert root.parent_span_id.hex() == CALLER
        assert {queue.parent_span_id, model.parent_span_id} == {root.span_id}
        assert queue.end_time_unix_nano - queue.start_time_unix_nano >= 50_000_000
        assert root.start_time_unix_nano <= queue.start_time_unix_nano
        assert queue.end_time_unix_nano <= model.start_time_unix_nano
        assert model.end_time_unix_nano <= root.end_time_unix_nano
        said = attributes(root)
        assert said["gen_ai.request.model"] == "default/m"
        assert said["kyb.seat"] == "n1/G0-seat-a"
        assert said["http.response.status_code"] == 200
        assert said["kyb.held_ms"] >= 50
        assert collector.services == {"kyb-proxy"}
        ((_, sent, _),) = stage.model.requests
        assert sent["traceparent"] == f"00-{TRACE}-{model.span_id.hex()}-01"
        assert told == [f"00-{TRACE}-{queue.span_id.hex()}-01"]

    traced(scenario)


def test_a_caller_that_is_not_sampled_is_passed_on_and_not_sent(traced):
    async def scenario(stage, collector):
        await stage.seat()
        given = {"traceparent": f"00-{TRACE}-{CALLER}-00", "tracestate": "a=1"}
        async with stage.chat(headers=given) as answer:
            assert answer.status == 200
        async with stage.chat(headers={"traceparent": "nonsense"}) as answer:
            assert answer.status == 200
        await until(collector, ROOT)
        assert collector.spans[ROOT].parent_span_id == b""
        assert collector.spans[ROOT].trace_id.hex() != TRACE
        (_, first, _), (_, second, _) = stage.model.requests
        assert first["traceparent"].startswith(f"00-{TRACE}-")
        assert first["traceparent"].endswith("-00")
        assert first["tracestate"] == "a=1"
        assert second["traceparent"].split("-")[1] == collector.spans[ROOT].trace_id.hex()

    traced(scenario)


def test_nothing_that_is_said_or_shown_is_in_a_span(traced):
    async def scenario(stage, collector):
        await stage.seat()
        shown = {"Authorization": "Bearer secret-key", "X-Note": "secret-header", **SAMPLED}
        asked = {"model": "m", "prompt": "secret-prompt"}
        path = "/v1/chat/completions?token=secret-query"
        async with stage.client.post(path, json=asked, headers=shown) as answer:
            assert answer.status == 200
            said = await answer.read()
        await until(collector, ROOT, "model")
        sent = b"".join(collector.bodies)
        assert b"default/m" in sent
        assert b"secret" not in sent
        assert said not in sent

    traced(scenario)


def test_a_refusal_is_a_span_and_a_seat_that_breaks_off_is_an_error(traced):
    async def scenario(stage, collector):
        async with stage.chat(model="none", headers=SAMPLED) as answer:
            assert answer.status == 404
        await until(collector, ROOT)
        said = attributes(collector.spans[ROOT])
        assert said["http.response.status_code"] == 404
        assert "gen_ai.request.model" not in said
        assert collector.spans[ROOT].status.code == 0
        collector.spans.clear()
        await stage.seat()
        await stage.model.stop()
        stage.service._settings.__dict__["connect_limit_s"] = 0.1
        async with stage.chat(headers=SAMPLED) as answer:
            assert answer.status == 502
        await until(collector, ROOT, "model")
        assert collector.spans[ROOT].status.code == 2

    traced(scenario)


def test_without_spans_the_context_of_a_request_passes_as_it_is(play):
    async def scenario(stage):
        await stage.seat()
        async with stage.chat(headers=SAMPLED) as answer:
            assert answer.status == 200
        ((_, sent, _),) = stage.model.requests
        assert sent["traceparent"] == SAMPLED["traceparent"]

    play(scenario)


def test_without_the_library_the_setting_is_refused_and_nothing_else_needs_it():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from kybernate.errors import ConfigError\n"
        "from proxy.relay.visits import traces\n"
        "import proxy.service\n"
        "try: traces(wanted=True)\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kybernate[traces]'" in done.stdout
