"""A real Envoy and the real endpoint picker of an InferencePool: what the picker holds has the
pool's model woken, by the configurations that the how-to page has.

The agent is the stage's, so the kubelet's part is the test's: a pod whose readiness gate is true is
ready. With a real one: tests/e2e/seats/test_picker.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import textwrap

import aiohttp
import pytest
import yaml

from bench.processes import free_port
from tests.integration.gateway.picker import PICKER, POOLS, Picker
from tests.integration.gateway.test_envoy import begun, leave, program, tls
from tests.kit import howto
from tests.unit.proxy.stage import DEADLINE, Stage

pytestmark = pytest.mark.skipif(bool(PICKER.not_built()), reason=PICKER.not_built())

__all__ = ["program", "tls"]
"""Fixtures."""

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
PODS = "/api/v1/namespaces/default/pods"


def written(key):
    """The YAML of the page that begins with this key."""
    blocks = re.findall(
        r"^( *)```yaml\n(.*?)^\1```", howto.text("inference-pool"), re.DOTALL | re.MULTILINE
    )
    texts = [textwrap.dedent(block) for _, block in blocks]
    (text,) = (one for one in texts if one.startswith(f"{key}:"))
    return yaml.safe_load(text)


class Pod:
    """The model's pod, as the API server has it."""

    def __init__(self, api):
        self._api = api
        container = {"name": "m", "image": "m"}
        gate = {"conditionType": "kyb.ai/wakeable"}
        spec = {"containers": [container], "readinessGates": [gate]}
        meta = {"name": "m-0", "labels": {"app": "m"}}
        api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        self.ready(value=False)

    def ready(self, *, value):
        """As the kubelet says it once the gate does."""
        conditions = [{"type": kind, "status": str(value)} for kind in ("kyb.ai/wakeable", "Ready")]
        ips = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "phase": "Running"}
        body = {"status": {**ips, "conditions": conditions}}
        self._api.patch(f"{PODS}/m-0/status", body, "strategic")

    def close(self):
        self._api.delete(f"{PODS}/m-0", {"gracePeriodSeconds": 0})


@pytest.fixture
def play(program, tls, control_plane, tmp_path):
    """Run a scenario: an async function of the stage, whose client asks through an Envoy, and of
    the model's pod, which is not ready."""
    api = control_plane.api()

    def run(scenario):
        async def act():
            port, model = free_port(), free_port()
            picker = Picker(control_plane, tmp_path, "m", model, written("apiVersion"))
            pod = Pod(api)
            try:
                pickers = {"default/m": picker.metrics}
                async with asyncio.timeout(6 * DEADLINE), Stage(tls, pickers=pickers) as stage:
                    await stage.model.stop()
                    stage.model.address = f"127.0.0.1:{model}"
                    await stage.model.start()
                    await stage.seat(granted=False)
                    with begun(program, told(port, picker.port), tmp_path):
                        await stage.client.close()
                        stage.client = aiohttp.ClientSession(f"http://127.0.0.1:{port}")
                        await listens(port)
                        await scenario(stage, pod)
            finally:
                pod.close()
                api.delete(f"{POOLS}/m")
                picker.close()

        asyncio.run(act())

    return run


def told(port, picker):
    """Envoy's configuration on the page, at these ports of this machine."""
    found = written("static_resources")
    (listener,) = found["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    _, cluster = found["static_resources"]["clusters"]
    ((end,),) = (one["lb_endpoints"] for one in cluster["load_assignment"]["endpoints"])
    end["endpoint"]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": picker}
    return found


async def listens(port):
    """Wait for the Envoy."""
    async with asyncio.timeout(2 * DEADLINE):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                return writer.close()
            await asyncio.sleep(0.05)


async def held(stage):
    """Wait until the agent has heard of what the picker holds."""
    await stage.agent.until(lambda: stage.agent.demand() == (0, 1))


def test_a_request_is_held_at_the_picker_while_its_model_wakes(play):
    async def scenario(stage, pod):
        asked = stage.asked(**CHAT)
        await held(stage)
        assert stage.model.requests == []
        stage.agent.lease("grant")
        await stage.agent.until(lambda: stage.agent.demand() == (1, 0))
        assert stage.model.requests == []
        await asyncio.to_thread(pod.ready, value=True)
        status, answer, _ = await asked
        assert (status, answer) == (200, {"counter": 1})
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))
        # While a pod is ready nothing is held, and the proxy has no part in it.
        reports = len(stage.agent.reports)
        assert (await stage.asked(**CHAT))[0] == 200
        await asyncio.sleep(1)
        assert len(stage.model.requests) == 2
        assert not [one for one in stage.agent.reports[reports:] if one.demand.uid]

    play(scenario)


def test_a_client_that_leaves_the_picker_has_nothing_woken(play):
    async def scenario(stage, _):
        asked = stage.asked(**CHAT)
        await held(stage)
        await leave(asked)
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))
        assert stage.model.requests == []

    play(scenario)
