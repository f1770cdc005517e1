"""The demo's traffic: the plan, the player against a small server, and what it makes of answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from aiohttp import web

from tests.demo import trace
from tests.demo.models import MODELS, manifests
from tests.demo.observe import SeatRow, WakeBook
from tests.demo.player import Player, checked, last_event


def test_the_excerpt_is_read_whole_and_in_order():
    rows = trace.read()
    assert len(rows) == 540
    assert rows[0].at == 0.0
    assert [row.at for row in rows] == sorted(row.at for row in rows)


def test_a_plan_is_squeezed_repeatable_and_prefers_the_first_models():
    names = [model.name for model in MODELS]
    plan = trace.plan(trace.read(), names, 60.0, seed=7)
    assert plan == trace.plan(trace.read(), names, 60.0, seed=7)
    assert plan[-1].at == pytest.approx(60.0)
    drawn = Counter(request.model for request in plan)
    assert set(drawn) == set(names)
    assert drawn.most_common(1)[0][0] == names[0]


def test_no_two_models_fit_on_one_gpu_and_some_need_two():
    sizes = sorted(model.vram for model in MODELS)
    assert sizes[0] + sizes[1] > 80 << 30
    assert {model.gpus for model in MODELS} == {1, 2}
    assert len(manifests()["items"]) == 6


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        pytest.param({"counter": 3, "checksum": "a", "expected": "a"}, "", id="as it must be"),
        pytest.param({"counter": 3, "checksum": "a", "expected": "b"}, "lost state", id="changed"),
        pytest.param(
            {"counter": 3, "device": [3, 2], "checksum": "a", "expected": "a"},
            "[3, 2] in GPU memory",
            id="an older state on one GPU",
        ),
        pytest.param({"counter": 3}, "lost state", id="no checksum"),
        pytest.param({}, "without a counter", id="no counter"),
    ],
)
def test_an_answer_is_checked(word, problem):
    assert problem in checked("m", {"model": "m", "kyb": word})[1]


def test_an_answer_of_another_model_is_noticed():
    assert "answered a request to m" in checked("m", {"model": "n", "kyb": {"counter": 1}})[1]


def test_a_stream_that_was_cut_off_is_no_answer():
    whole = b'data: {"kyb": {"counter": 1}}\n\ndata: {"x": 1}\n\ndata: [DONE]\n\n'
    assert last_event(whole)["kyb"]["counter"] == 1
    with pytest.raises(ValueError, match="before"):
        last_event(whole[:-16])


def test_the_player_asks_all_and_keeps_what_came():
    async def chat(request):
        body = await request.json()
        if body["model"] == "busy":
            return web.json_response({"error": {}}, status=429)
        word = {"counter": 1, "checksum": "a", "expected": "a"}
        data = {"model": body["model"], "kyb": word}
        if body["stream"]:
            return web.Response(text=f"data: {json.dumps(data)}\n\ndata: [DONE]\n\n")
        return web.json_response(data, headers={"X-Kyb-Wake-Ms": "12.5"})

    async def scenario():
        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        rows = trace.read()[:8]
        plan = trace.plan(rows, ["m", "busy"], 0.05, seed=1)
        player = Player(f"http://127.0.0.1:{runner.addresses[0][1]}", plan)
        await player.play()
        await runner.cleanup()
        return plan, player

    plan, player = asyncio.run(scenario())
    wanted = Counter(200 if request.model == "m" else 429 for request in plan)
    assert Counter(answer.status for answer in player.answers) == wanted
    assert all(not answer.problem for answer in player.answers if answer.status == 200)
    assert {answer.held for answer in player.answers if answer.status == 200} <= {0.0, 12.5}
    assert not +player.open


def seat(wakes, ms=0.0):
    return SeatRow("n1", "G0", "G0-seat-1", "p", "m", "active", 0, 0, wakes, ms)


def test_wakes_are_counted_from_the_first_look_on():
    book = WakeBook({"m": 2})
    for wakes, ms in ((4, 10.0), (4, 10.0), (5, 20.0), (7, 30.0)):
        book.look([seat(wakes, ms)])
    assert [(wake.ms, wake.gpus) for wake in book.wakes] == [(20.0, 2), (30.0, 2), (30.0, 2)]
