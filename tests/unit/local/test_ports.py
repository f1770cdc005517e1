"""A model's server does its part of a park and a wake."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from kybernate.local.ports import Doors, Servers
from kybernate.local.processes import BoxInits, BoxProcs
from kybernate.local.specs import ModelSpec
from kybernate.ports import CooperationPhase
from kybernate.types import PodUid

PARK, WAKE = CooperationPhase.PARK, CooperationPhase.WAKE
A = PodUid("model-a")


class Engine:
    """Answers as the test says, and notes when it was asked for what."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def part(self, uid, phase, limit):
        self.asked.append((phase, round(asyncio.get_running_loop().time())))
        return self.answers.pop(0) if self.answers else ""

    def doors(self, folder):
        return Doors(folder, BoxProcs(folder), BoxInits(), self.part)


async def test_a_wake_that_was_not_done_is_asked_again_until_it_is(tmp_path):
    engine = Engine("no", "no", "no", "")
    doors, began = engine.doors(tmp_path), round(asyncio.get_running_loop().time())
    assert await doors.cooperate(A, WAKE, 5.0) == "no"
    await asyncio.sleep(100)
    assert engine.asked == [(WAKE, began + after) for after in (0, 1, 3, 7)]


async def test_what_is_asked_next_ends_that(tmp_path):
    engine = Engine("no")
    doors = engine.doors(tmp_path)
    await doors.cooperate(A, WAKE, 5.0)
    assert await doors.cooperate(A, PARK, 5.0) == ""
    await asyncio.sleep(100)
    assert [phase for phase, _ in engine.asked] == [WAKE, PARK]


async def test_a_park_waits_for_the_answer_to_a_wake_that_is_under_way(tmp_path):
    """A server may carry out what was cancelled: asleep by then, it would be woken parked."""
    done = []

    async def part(uid, phase, limit):
        took = 3.0 if phase is WAKE else 1.0
        asyncio.get_running_loop().call_later(took, done.append, phase)  # whoever waits for it
        await asyncio.sleep(took + 0.1)
        return "" if len(done) > 1 else "no"

    doors = Doors(tmp_path, BoxProcs(tmp_path), BoxInits(), part)
    assert await doors.cooperate(A, WAKE, 5.0) == "no"
    await asyncio.sleep(2.0)  # it is asked again
    await doors.cooperate(A, PARK, 5.0)
    assert done == [WAKE, WAKE, PARK]
    await asyncio.sleep(100)
    assert done == [WAKE, WAKE, PARK]


async def test_a_park_that_was_not_done_is_not_asked_again(tmp_path):
    engine = Engine("no")
    assert await engine.doors(tmp_path).cooperate(A, PARK, 5.0) == "no"
    await asyncio.sleep(100)
    assert len(engine.asked) == 1


@pytest.mark.real_time
async def test_vllm_is_put_to_sleep_below_the_path_of_its_server():
    asked = []

    async def answer(request):
        asked.append((request.path_qs, request.headers["Kyb-Deadline-Ms"]))
        return web.Response(status=500 if "wake" in request.path else 200)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    spec = ModelSpec("a", ("vllm",), address, cooperate="vllm", base="/base")
    async with aiohttp.ClientSession() as session:
        servers = Servers(session)
        assert await servers.do_part(spec, PARK, 5.0) == ""
        assert await servers.do_part(spec, WAKE, 5.0) == "POST /wake_up is answered 500"
        await runner.cleanup()
        refused = await servers.do_part(spec, WAKE, 5.0)
    assert refused.startswith("POST /wake_up: ")
    assert asked == [("/base/sleep?level=1", "5000"), ("/base/wake_up", "5000")]
