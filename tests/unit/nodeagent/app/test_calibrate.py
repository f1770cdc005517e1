"""`kybernate calibrate` on a made-up node, and the file that it writes."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kybernate.cli import main as kybernate
from kybernate.core.simulate.costs import read_costs, write_costs
from kybernate.core.simulate.world import NVME, Costs
from kybernate.core.tiers.tiers import Speed
from kybernate.errors import ConfigError
from kybernate.types import SeatState, Tier
from nodeagent.api.doorkeeper import Doorkeeper, Rates
from nodeagent.api.servers import serve_node
from tests.unit.nodeagent.api.test_api import node_api

GIB = 1 << 30
WITHOUT_NVME = '{"version": 1, "gpu_gb": 80.0, "wake": 20.0, "park": 20.0, "fixed": 0.0}'
"""As kybernate calibrate wrote it before it knew NVMe."""


async def calibrated(r, tmp_path, *words):
    """The command's result, with the agent of this rig behind its socket."""
    socket = tmp_path / "agent.sock"
    doorkeeper = Doorkeeper(Rates(), r.clock.time, unix=True)
    server = await serve_node(node_api(r), doorkeeper, socket)
    try:
        line = ["calibrate", "--socket", str(socket), *words]
        return await asyncio.to_thread(CliRunner().invoke, kybernate, line)
    finally:
        await server.stop(0)


@pytest.mark.real_time
async def test_it_parks_and_wakes_and_writes_what_that_took(rig, tmp_path):
    out = tmp_path / "costs.json"
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    for name in ("a", "b"):
        await r.until(await r.seat(name, delay=0.0), SeatState.ACTIVE)
    wakes = r.node.seats["uid-a"].history.wakes
    done = await calibrated(r, tmp_path, "a", "b", "--rounds", "2", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert r.node.seats["uid-a"].history.wakes == wakes + 3
    assert r.state("uid-b") is SeatState.ACTIVE
    assert "this node has no NVMe for parked states: the file says nothing of it" in done.output
    assert "nvme" not in json.loads(out.read_text())
    costs = read_costs(out.read_text(), "costs.json")
    assert costs.gpu_gb == pytest.approx(80 * GIB / 1e9, rel=1e-3)
    assert costs.wake > 1
    assert costs.park > 1
    assert 0 < costs.fixed < 5


@pytest.mark.real_time
async def test_nvme_is_measured_where_the_node_has_it(rig, tmp_path):
    out = tmp_path / "costs.json"
    r = rig(tiers={Tier.NVME: 1000 * GIB}, min_residency_s=0.0, idle_after_s=0.0)
    r.node.park_budget = 100 * GIB
    r.begin()
    await r.until(await r.seat("a", delay=0.0), SeatState.ACTIVE)
    done = await calibrated(r, tmp_path, "a", "--rounds", "2", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "from it" in done.output
    assert r.state("uid-a") is SeatState.ACTIVE
    written = json.loads(out.read_text())
    assert (written["version"], set(written["nvme"])) == (1, {"write", "read", "fixed"})
    costs = read_costs(out.read_text(), "costs.json")
    assert costs.nvme != NVME
    assert min(costs.nvme.write, costs.nvme.read) > 1e6


@pytest.mark.real_time
async def test_a_seat_that_holds_nothing_is_refused(rig, tmp_path):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    await r.until(await r.seat("a", delay=0.0, size=0), SeatState.ACTIVE)
    failed = await calibrated(r, tmp_path, "a")
    assert failed.exit_code == 1
    assert "holds no GPU memory: name one that has its model" in failed.output


@pytest.mark.real_time
async def test_what_did_not_succeed_is_told(rig, tmp_path):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    await r.until(await r.seat("a", delay=0.0), SeatState.ACTIVE)
    r.node.draining = "new driver"
    failed = await calibrated(r, tmp_path, "a")
    assert failed.exit_code == 1
    assert "new driver" in failed.output or "undrain" in failed.output


def test_simulate_reads_the_file_and_options_come_first(tmp_path):
    models, trace, costs = (tmp_path / name for name in ("m.csv", "t.csv", "c.json"))
    models.write_text("model,gb\na,40\n")
    trace.write_text("at,model,seconds\n0,a,1\n")
    costs.write_text(write_costs(Costs(gpu_gb=48.0, wake=10.0, park=5.0, fixed=0.5), None))
    line = ["simulate", str(trace), "--models", str(models), "--gpus", "1", "--json"]

    def waited(*more):
        found = CliRunner().invoke(kybernate, [*line, "--costs", str(costs), *more])
        assert found.exit_code == 0, found.output
        return json.loads(found.output)["fifo"]["wait_max"]

    assert waited() == pytest.approx(0.5 + 40 / 10)
    assert waited("--wake", "20") == pytest.approx(0.5 + 40 / 20)
    models.write_text("model,gb\na,60\n")
    failed = CliRunner().invoke(kybernate, [*line, "--costs", str(costs)])
    assert "has 60 GB, and a GPU 48" in failed.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "c.json: it is no JSON"),
        ("[]", "c.json: version: None is not 1"),
        ('{"version": 2}', "c.json: version: 2 is not 1"),
        ('{"version": 1, "gpu_gb": 0}', "c.json: gpu_gb: 0 is no number of at least 0.001"),
        ('{"version": 1, "gpu_gb": true}', "c.json: gpu_gb: True is no number"),
        ('{"version": 1, "gpu_gb": 80, "wake": "fast"}', "c.json: wake: 'fast' is no number"),
        ('{"version": 1, "gpu_gb": 80, "wake": 1}', "c.json: park: None is no number"),
        (f'{WITHOUT_NVME[:-1]}, "nvme": 3}}', "c.json: nvme: 3 says no speeds"),
        (f'{WITHOUT_NVME[:-1]}, "nvme": {{"write": 3}}}}', "c.json: nvme: read: None is no number"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(text, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_costs(text, "c.json")


def test_what_is_written_is_read():
    costs = replace(Costs(), gpu_gb=85.9, wake=21.5, park=19.25, fixed=0.125)
    assert read_costs(write_costs(costs, None), "c") == costs
    below = replace(costs, nvme=Speed(write=2.5e9, read=3.5e9, latency=0.25))
    assert read_costs(write_costs(below, below.nvme), "c") == below


def test_a_file_is_read_by_who_knew_no_nvme_and_one_of_theirs_by_us():
    """Each reader takes the fields that it knows, by a version that stayed."""
    written = json.loads(write_costs(Costs(), Speed(write=1e9, read=1e9)))
    assert written.items() >= json.loads(WITHOUT_NVME).items()
    assert read_costs(WITHOUT_NVME, "c") == Costs()
