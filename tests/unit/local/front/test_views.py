"""What a box says of itself, and what people have it do by hand."""

from __future__ import annotations

import json

FILE = """
includeAliasesInList: true
models:
  b: {cmd: "s ${PORT}", unlisted: true}
  a:
    cmd: s ${PORT}
    aliases: [x]
    name: The A
    description: first
    metadata: {port: "${PORT}"}
    capabilities: {in: [text, image], out: [text], tools: true, context: 100}
"""


def test_models_are_listed_with_what_the_file_says(play):
    async def scenario(stage):
        status, text = await stage.get("/v1/models")
        said = json.loads(text)
        assert (status, [one["id"] for one in said["data"]]) == (200, ["a", "x"])
        one = said["data"][0]
        assert (one["object"], one["name"], one["description"]) == ("model", "The A", "first")
        assert one["meta"] == {"llamaswap": {"port": 5800}}
        assert one["context_length"] == 100
        assert one["capabilities"] == {"vision": True, "function_calling": True}
        assert one["status"] == {"value": "unloaded"}
        assert one["kyb"]["state"] == "waiting"
        await stage.post("/v1/completions", json={"model": "x"})
        one = json.loads((await stage.get("/models"))[1])["data"][0]
        assert (one["status"], one["kyb"]["state"]) == ({"value": "loaded"}, "active")
        assert json.loads((await stage.get("/v1/models/b"))[1])["id"] == "b"
        assert (await stage.get("/v1/models/nobody"))[0] == 404

    play(scenario, FILE)


def test_a_model_that_the_box_can_not_run_is_not_listed(play):
    async def scenario(stage):
        listed = json.loads((await stage.get("/v1/models"))[1])["data"]
        assert [one["id"] for one in listed] == ["a"]
        tags = json.loads((await stage.get("/api/tags"))[1])["models"]
        assert [one["name"] for one in tags] == ["a"]
        status, text = await stage.get("/v1/models/b")
        assert (status, json.loads(text)["error"]["code"]) == (404, "model_left_out")

    play(scenario, lacks=["b"])


def test_running_ones_are_told_from_parked_ones(play):
    async def scenario(stage):
        assert json.loads((await stage.get("/running"))[1]) == {"running": [], "parked": []}
        await stage.post("/v1/completions", json={"model": "a"})
        await stage.post("/v1/completions", json={"model": "b"})
        said = json.loads((await stage.get("/running"))[1])
        (running,), (parked,) = said["running"], said["parked"]
        assert (running["model"], running["state"], running["cmd"]) == ("b", "ready", "s 5801")
        assert (parked["model"], parked["state"], parked["kyb"]["tier"]) == ("a", "parked", "ram")

    play(scenario)


def test_models_are_unloaded_parked_and_pinned_by_hand(play):
    async def scenario(stage):
        assert await stage.get("/unload") == (200, "OK")
        async with stage.client.post("/api/models/unload/org/a") as answer:
            assert answer.status == 200
        for act in ("park", "wake", "pin", "unpin"):
            async with stage.client.post(f"/api/models/{act}/gpt-4o-mini") as answer:
                assert answer.status == 200
                told = await answer.json()
            assert (told["state"], told["tier"]) == ("parked", "ram")
            assert told["phases"] == {"checkpoint": 0.5, "all": 0.75}
        done = [("unload", "a"), ("unload", "b"), ("unload", "a"), ("park", "a"), ("wake", "a")]
        assert stage.box.acts == [*done, ("pin", "a"), ("unpin", "a")]
        async with stage.client.post("/api/models/park/nobody") as answer:
            assert answer.status == 404

    play(scenario)


def test_logs_are_plain_text_and_follow(play):
    async def scenario(stage):
        status, text = await stage.get("/logs")
        assert (status, text) == (200, "== a ==\na began\n== b ==\nb began\n")
        async with stage.client.get("/logs/stream/gpt-4o-mini") as answer:
            assert answer.content_type == "text/plain"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert await answer.content.readline() == b"a began\n"
            stage.box.lines.put_nowait(b"<script>\n")
            assert await answer.content.readline() == b"<script>\n"
        async with stage.client.get("/logs/stream") as answer:
            first = {await answer.content.readline(), await answer.content.readline()}
            assert first == {b"a began\n", b"b began\n"}
        assert (await stage.get("/logs/stream/nobody"))[0] == 404

    play(scenario)


OURS = ("kyb_proxy_", "kyb_agent_", "process_")


def test_metrics_and_health(play):
    async def scenario(stage):
        await stage.post("/v1/completions", json={"model": "org/a"})
        _, text = await stage.get("/metrics")
        assert 'kyb_proxy_requests_total{model="a",status="200"} 1.0' in text
        assert stage.box.counted
        assert text.count("# HELP process_start_time_seconds") == 1
        for line in text.splitlines():
            assert line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(OURS)
        assert await stage.get("/") == (200, "Kybernate is running\n")
        assert await stage.get("/health") == (200, "Kybernate is running\n")

    play(scenario)
