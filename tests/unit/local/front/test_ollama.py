"""Ollama's clients: what they ask reaches a model as OpenAI's request, and comes back as theirs."""

from __future__ import annotations

import asyncio
import json

import pytest

FILE = """
models:
  a:
    cmd: s ${PORT}
    useModelName: own
    filters: {setParams: {min_p: 0.1}}
    capabilities: {in: [text, image], out: [text], tools: true, context: 100}
  b: {cmd: "s ${PORT}", unlisted: true}
"""
CHAT = "/v1/chat/completions"


def piece(**delta):
    return {"choices": [{"delta": delta, "finish_reason": None}]}


LAST = {"choices": [{"delta": {}, "finish_reason": "length"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


async def lines(stage, path, **asked):
    async with stage.client.post(path, data=json.dumps(asked)) as answer:
        assert answer.content_type == "application/x-ndjson"
        return [json.loads(line) async for line in answer.content]


def test_chat_streams_lines(play):
    async def scenario(stage):
        first = piece(reasoning_content="hm")
        stage.server.answers[CHAT] = [
            first,
            piece(content="he"),
            piece(content="llo ✓"),
            LAST,
            USAGE,
        ]
        said = await lines(
            stage,
            "/api/chat",
            model="a:latest",
            messages=[{"role": "user", "content": "hi", "images": ["iVBORx"]}],
            options={"temperature": 0.5, "num_predict": 7, "num_ctx": 1},
            format={"type": "object"},
            think=False,
        )
        assert [one["message"]["content"] for one in said] == ["", "he", "llo ✓", ""]
        assert said[0]["message"]["thinking"] == "hm"
        assert [one["done"] for one in said] == [False, False, False, True]
        last = said[-1]
        assert (last["model"], last["done_reason"]) == ("a:latest", "length")
        assert (last["prompt_eval_count"], last["eval_count"]) == (3, 2)
        method, path, request = stage.server.last
        assert (method, path) == ("POST", CHAT)
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORx"}}
        assert request == {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, image]}],
            "temperature": 0.5,
            "max_tokens": 7,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": {"type": "object"}},
            },
            "chat_template_kwargs": {"enable_thinking": False},
            "stream": True,
            "stream_options": {"include_usage": True},
            "model": "own",
            "min_p": 0.1,
        }

    play(scenario, FILE)


def test_a_client_of_ollamas_is_not_told_how_it_stands_in_openais_shape(play):
    async def scenario(stage):
        stage.server.answers[CHAT] = [piece(content="hello"), LAST]
        stage.box.slow = 0.7
        asked = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"X-Kyb-Progress": "1"}
        async with stage.client.post("/api/chat", json=asked, headers=headers) as answer:
            assert answer.content_type == "application/x-ndjson"
            said = [json.loads(line) async for line in answer.content]
        assert said[0]["message"]["content"] == "hello"

    play(scenario, FILE)


def test_chat_in_one_piece_with_tools(play):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}

    async def scenario(stage):
        stage.server.answers[CHAT] = {
            "choices": [
                {
                    "message": {"content": None, "tool_calls": [call]},
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        }
        tool = {"type": "function", "function": {"name": "f"}}
        before = {"function": {"name": "f", "arguments": {"x": 0}}}
        status, said = await stage.post(
            "/api/chat",
            json={
                "model": "a",
                "stream": False,
                "tools": [tool],
                "messages": [
                    {"role": "assistant", "content": "", "tool_calls": [before]},
                    {"role": "tool", "tool_name": "f", "content": "7"},
                ],
            },
        )
        assert (status, said["done"], said["done_reason"]) == (200, True, "stop")
        assert said["message"]["tool_calls"] == [{"function": {"name": "f", "arguments": {"x": 1}}}]
        sent = stage.server.last[2]
        assert sent["tools"] == [tool]
        assert sent["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"x":0}'
        assert sent["messages"][1]["tool_call_id"] == sent["messages"][0]["tool_calls"][0]["id"]

    play(scenario, FILE)


def test_calls_of_tools_that_stream_in_pieces_come_as_one(play):
    def part(**function):
        return piece(tool_calls=[{"index": 0, "function": function}])

    async def scenario(stage):
        pieces = [part(name="f", arguments=""), part(arguments='{"x"'), part(arguments=": 1}")]
        stage.server.answers[CHAT] = [*pieces, USAGE]
        said = await lines(
            stage, "/api/chat", model="a", messages=[{"role": "user", "content": "x"}]
        )
        (only,) = said
        assert only["message"]["tool_calls"] == [{"function": {"name": "f", "arguments": {"x": 1}}}]

    play(scenario, FILE)


def test_generate_uses_the_models_template_unless_it_is_raw(play):
    async def scenario(stage):
        stage.server.answers[CHAT] = [piece(content="x"), LAST]
        said = await lines(stage, "/api/generate", model="a", prompt="p", system="s")
        assert [one["response"] for one in said] == ["x", ""]
        assert stage.server.last[2]["messages"] == [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "p"},
        ]
        stage.server.answers["/v1/completions"] = {"choices": [{"text": "y"}]}
        asked = {"model": "a", "prompt": "p", "raw": True, "stream": False}
        status, one = await stage.post("/api/generate", json=asked)
        assert (status, one["response"], one["done"]) == (200, "y", True)
        assert stage.server.last[2]["prompt"] == "p"
        assert "messages" not in stage.server.last[2]

    play(scenario, FILE)


def test_an_empty_prompt_loads_a_model_and_keep_alive_parks_it(play):
    async def scenario(stage):
        status, said = await stage.post("/api/generate", json={"model": "a"})
        assert (status, said["done"], said["done_reason"]) == (200, True, "load")
        status, said = await stage.post("/api/chat", json={"model": "a", "keep_alive": 0})
        assert (status, said["done_reason"]) == (200, "unload")
        assert stage.box.acts == [("wake", "a"), ("park", "a")]

    play(scenario, FILE)


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_embeddings_come_in_order(play, path):
    async def scenario(stage):
        stage.server.answers["/v1/embeddings"] = {
            "data": [{"index": 1, "embedding": [3.0]}, {"index": 0, "embedding": [1.0, 2.0]}],
            "usage": {"prompt_tokens": 4},
        }
        status, said = await stage.post(path, json={"model": "a", "input": ["x", "y"]})
        assert status == 200
        if path == "/api/embed":
            assert (said["embeddings"], said["prompt_eval_count"]) == ([[1.0, 2.0], [3.0]], 4)
        else:
            assert said == {"embedding": [1.0, 2.0]}
        assert stage.server.last[2] == {"input": ["x", "y"], "model": "own", "min_p": 0.1}

    play(scenario, FILE)


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"model": "nobody", "prompt": "x"}, 404, "No model is called 'nobody' here. There are"),
        ({"prompt": "x"}, 404, "No model is called ''"),
        ({"model": 7, "prompt": "x"}, 400, "model must be"),
        ({"model": "a", "prompt": ["x"]}, 400, "prompt must be a text"),
        ({"model": "a", "prompt": "x", "options": 3}, 400, "options must be a mapping"),
        ({"model": "a", "prompt": "x", "format": 3}, 400, "format must be"),
        ([], 400, "isn't a JSON object"),
    ],
)
def test_what_is_wrong_is_said_in_ollamas_shape(play, asked, status, said):
    async def scenario(stage):
        found, answer = await stage.post("/api/generate", json=asked)
        assert (found, list(answer)) == (status, ["error"])
        assert said in answer["error"]

    play(scenario, FILE)


def test_a_servers_error_comes_in_ollamas_shape(play):
    async def scenario(stage):
        stage.server.answers[CHAT] = (400, {"error": {"message": "too long"}})
        asked = {"model": "a", "messages": [{"role": "user", "content": "x"}]}
        assert await stage.post("/api/chat", json=asked) == (400, {"error": "too long"})
        stage.server.answers[CHAT] = [piece(content="x"), {"error": {"message": "broke"}}]
        said = await lines(stage, "/api/chat", **asked)
        assert said[1] == {"error": "broke"}

    play(scenario, FILE)


def test_models_are_listed_shown_and_seen_running(play):
    async def scenario(stage):
        (one,) = json.loads((await stage.get("/api/tags"))[1])["models"]
        assert (one["name"], one["model"], len(one["digest"])) == ("a", "a", 64)
        assert json.loads((await stage.get("/api/ps"))[1]) == {"models": []}
        await stage.post("/v1/completions", json={"model": "b"})
        (one,) = json.loads((await stage.get("/api/ps"))[1])["models"]
        assert one["name"] == "b"
        status, said = await stage.post("/api/show", json={"model": "a"})
        assert (status, said["capabilities"]) == (200, ["completion", "tools", "vision"])
        assert "version" in json.loads((await stage.get("/api/version"))[1])
        status, said = await stage.post("/api/pull", json={"model": "x"})
        assert status == 404
        assert "models.yaml" in said["error"]

    play(scenario, FILE)


def test_a_model_takes_so_many_requests_at_once_here_too(play):
    async def scenario(stage):
        stage.server.gate.clear()
        asked = {"model": "a", "prompt": "hi", "stream": False}
        first = asyncio.create_task(stage.post("/api/generate", json=asked))
        await stage.server.until_asked()
        async with asyncio.timeout(5):
            status, said = await stage.post("/api/generate", json=asked)
        assert (status, "concurrencyLimit" in said["error"]) == (429, True)
        stage.server.gate.set()
        assert (await first)[0] == 200

    play(scenario, 'models: {a: {cmd: "s ${PORT}", concurrencyLimit: 1}}')


@pytest.mark.parametrize("option", ["seed", "num_predict"])
def test_a_number_may_be_longer_than_64_bits(play, option):
    async def scenario(stage):
        body = {"model": "a", "messages": [], "options": {option: 1 << 70}}
        async with stage.client.post("/api/chat", data=json.dumps(body)) as answer:
            assert answer.status < 500, await answer.text()

    play(scenario)
