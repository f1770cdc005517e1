"""What an endpoint picker holds has its model woken, for as long as it holds it."""

from __future__ import annotations

import pytest
from aiohttp import web

from proxy.relay.pickers import held

PAGE = """\
# HELP inference_extension_flow_control_queue_size Current number of requests.
# TYPE inference_extension_flow_control_queue_size gauge
inference_extension_flow_control_queue_size{fairness_id="a } 7",priority="0"} %s
inference_extension_flow_control_queue_size{fairness_id="b",priority="-1"} 1
inference_extension_flow_control_queue_bytes{fairness_id="b",priority="-1"} 900
"""


@pytest.mark.parametrize(
    ("page", "many"),
    [(PAGE % 2, 3), (PAGE % 0, 1), ("", 0), ("inference_extension_flow_control_queue_size NaN", 0)],
)
def test_what_is_held_is_counted_over_all_flows(page, many):
    assert held(page.encode()) == many


class Picker:
    """Its page of metrics."""

    def __init__(self):
        self.page, self.status = "", 200
        self._runner = None

    async def start(self):
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/metrics"

    async def stop(self):
        await self._runner.cleanup()

    async def _metrics(self, _):
        return web.Response(text=self.page, status=self.status)


@pytest.fixture
def behind(play):
    """Run a scenario that takes the stage and a picker, which is the proxy's."""

    def run(scenario):
        async def act(stage):
            picker = Picker()
            url = await picker.start()
            told = {"pickers": {"default/m": url}}
            await stage.restart(stage.service._settings.model_copy(update=told))
            await stage.seat(granted=False)
            try:
                await scenario(stage, picker)
            finally:
                await picker.stop()

        play(act)

    return run


def test_the_model_is_wanted_while_its_picker_holds_requests(behind):
    async def scenario(stage, picker):
        picker.page = PAGE % 1
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        stage.agent.lease("grant")
        await stage.agent.until(lambda: stage.agent.demand() == (1, 0))
        picker.page = ""
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))
        assert stage.model.requests == []

    behind(scenario)


@pytest.mark.parametrize("gone", [{"page": ""}, {"status": 503}])
def test_nothing_is_woken_for_what_was_given_up(behind, gone):
    async def scenario(stage, picker):
        picker.page = PAGE % 1
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        for name, value in gone.items():
            setattr(picker, name, value)
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))

    behind(scenario)
