"""`kybernate agent` on a made-up node, over the agent's real socket."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner

from kybernate.cli import main as kybernate
from kybernate.cli.agent.commands import command
from kybernate.types import SeatState
from nodeagent.api.doorkeeper import Doorkeeper, Rates
from nodeagent.api.servers import serve_node
from tests.unit.nodeagent.api.test_api import node_api


@pytest.fixture
def on_node(rig, tmp_path):
    """Runs a scenario with seats a (parked) and b (active); it gets the rig and `run(*words)`."""

    def go(scenario, **settings):
        async def main():
            r = rig(min_residency_s=0.0, idle_after_s=0.0, **settings)
            r.begin()
            socket = tmp_path / "agent.sock"
            server = await serve_node(
                node_api(r), Doorkeeper(Rates(), r.clock.time, unix=True), socket
            )

            async def run(*words):
                arguments = ["agent", "--socket", str(socket), *words]
                return await asyncio.to_thread(CliRunner().invoke, kybernate, arguments)

            try:
                for name in ("a", "b"):
                    await r.until(await r.seat(name, delay=0.0), SeatState.ACTIVE)
                await scenario(r, run, server)
            finally:
                await server.stop(0)

        asyncio.run(main())

    return go


def test_status_shows_gpus_seats_and_why(on_node):
    async def scenario(r, run, _):
        shown = await run("status")
        assert shown.exit_code == 0, shown.output
        for word in ("node n1", "default/a", "parked", "active", "H100", "1 of 2 seats active"):
            assert word in shown.output, shown.output
        told = json.loads((await run("status", "--json")).output)
        assert {seat["pod"]: seat["state"] for seat in told["seats"]} == {
            "a": "parked",
            "b": "active",
        }
        assert told["operations"] == []

    on_node(scenario)


def test_park_and_wake_do_it_and_tell_how_it_went(on_node):
    async def scenario(r, run, _):
        done = await run("park", "b", "--why", "a test")
        assert (done.exit_code, r.state("uid-b")) == (0, SeatState.PARKED), done.output
        assert "succeeded park of default/b" in done.output
        assert "freeze" in done.output
        woken = await run("wake", "default/a", "--json", "--name", "w1")
        assert r.state("uid-a") is SeatState.ACTIVE
        assert json.loads(woken.output)["state"] == "succeeded"
        again = await run("wake", "uid-a", "--json", "--name", "w1")
        assert json.loads(again.output) == json.loads(woken.output)
        listed = await run("operations", "--all")
        assert "w1" in listed.output
        assert "No operation is under way" in (await run("operations")).output

    on_node(scenario)


def test_a_dry_run_does_nothing_and_says_what_would_happen(on_node):
    async def scenario(r, run, _):
        for words in (("park", "b"), ("evict", "b"), ("drain",), ("wake", "a")):
            told = await run(*words, "--dry-run")
            assert told.exit_code == 0, told.output
            assert "Nothing was done" in told.output
            assert "  1. " in told.output
        assert (r.state("uid-b"), r.node.draining) == (SeatState.ACTIVE, "")

    on_node(scenario)


def test_drain_and_undrain(on_node):
    async def scenario(r, run, _):
        assert (await run("drain", "--why", "new driver")).exit_code == 0
        assert "new driver" in r.node.draining
        assert "nothing starts or wakes here" in (await run("status")).output
        refused = await run("wake", "b")
        assert refused.exit_code == 1
        assert "undrain it first" in refused.output
        assert (await run("undrain")).exit_code == 0
        assert r.node.draining == ""

    on_node(scenario)


def test_an_operation_can_be_left_alone_and_cancelled(on_node):
    async def scenario(r, run, _):
        r.loop.refusals = lambda seats: dict.fromkeys((s.uid for s in seats), "RAM is short")
        begun = await run("evict", "b", "--name", "e1", "--no-wait", "--deadline", "50")
        assert "e1 is begun" in begun.output
        await asyncio.sleep(1.2)
        (waits,) = json.loads((await run("operations", "--json")).output)
        assert (waits["state"], "RAM is short" in waits["sentence"]) == ("pending", True)
        assert "e1" in (await run("operations")).output
        refused = await run("park", "b")
        assert (refused.exit_code, "watch it or cancel it" in refused.output) == (1, True)
        assert "cancelled evict" in (await run("cancel", "e1")).output
        assert r.node.seats["uid-b"].wishes.leave == ""

    on_node(scenario)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("park", "nobody"), "no seat of nobody is on node n1; there are: default/a, default/b"),
        (("cancel", "o1"), "no operation is named 'o1'"),
        (("park", "a", "--name", "A!"), "name: 'A!' must be"),
    ],
)
def test_errors_say_what_to_do(on_node, words, sentence):
    async def scenario(r, run, _):
        failed = await run(*words)
        assert (failed.exit_code, sentence in failed.output) == (1, True), failed.output

    on_node(scenario)


def test_without_an_agent_it_says_where_it_looked(tmp_path):
    failed = CliRunner().invoke(kybernate, ["agent", "--socket", f"{tmp_path}/x", "status"])
    assert failed.exit_code == 1
    assert f"no agent answers at {tmp_path}/x" in failed.output


@pytest.mark.parametrize("name", sorted(command.commands))
def test_help_teaches_with_an_example(name):
    shown = CliRunner().invoke(kybernate, ["agent", name, "--help"])
    assert f"kybernate agent {name}" in shown.output


def test_watch_prints_a_line_at_each_change(on_node):
    async def scenario(r, run, server):
        shown = asyncio.create_task(run("watch", "--json"))
        await asyncio.sleep(0.5)
        r.loop.operators.send_away("uid-b", "a test")
        await r.until("uid-b", SeatState.PARKED)
        await asyncio.sleep(0.6)
        await server.stop(0)
        lines = [line for line in (await shown).output.splitlines() if line.startswith("{")]
        states = [json.loads(line)["seats"][1]["state"] for line in lines]
        assert (states[0], states[-1]) == ("active", "parked")

    on_node(scenario)
