"""Which model a request is for, and what the model's server gets of it."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from kybernate.api.models import read
from kybernate.local.front.bodies import named
from proxy.openai import ApiError

HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/completions?x=a%26b", "/v1/completions?x=a%26b"),
        ("/v1/responses", "/v1/responses"),
        ("/v1/messages", "/v1/messages"),
        ("/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/embeddings", "/v1/embeddings"),
        ("/v1/rerank", "/v1/rerank"),
        ("/rerank", "/rerank"),
        ("/infill", "/infill"),
        ("/v1/images/generations", "/v1/images/generations"),
        ("/v1/audio/speech", "/v1/audio/speech"),
        ("/v/chat/completions", "/chat/completions"),
    ],
)
def test_a_body_in_json_names_the_model(play, path, there):
    async def scenario(stage):
        status, said = await stage.post(path, json={"model": "gpt-4o-mini", "n": 1})
        assert (status, said) == (200, {"path": there})
        assert stage.server.last == ("POST", there, {"model": "gpt-4o-mini", "n": 1})
        assert stage.box.started == ["a"]

    play(scenario)


def test_requests_swap_models_and_wait_for_those_in_flight(play):
    async def scenario(stage):
        stage.server.gate.clear()
        first = asyncio.create_task(stage.post("/v1/completions", json={"model": "a"}))
        await stage.server.until_asked()
        second = asyncio.create_task(stage.post("/v1/completions", json={"model": "b"}))
        await asyncio.sleep(0.05)
        assert stage.box.started == ["a"]
        stage.server.gate.set()
        assert (await first)[0] == (await second)[0] == 200
        assert stage.box.started == ["a", "b"]

    play(scenario)


def test_a_model_that_the_box_can_not_run_is_told_from_an_unknown_one(play):
    async def scenario(stage):
        for path in ("/v1/completions", "/upstream/b/x"):
            status, said = await stage.post(path, json={"model": "b"})
            assert (status, said["error"]["code"]) == (404, "model_left_out")
            assert said["error"]["message"].startswith("b is in the file, but this box can't run")
        status, said = await stage.post("/api/chat", json={"model": "b", "messages": [HI]})
        assert (status, said["error"].partition(",")[0]) == (404, "b is in the file")
        assert (await stage.post("/v1/completions", json={"model": "a"}))[0] == 200

    play(scenario, lacks=["b"])


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/images/edits"])
def test_a_forms_part_names_the_model(play, path):
    async def scenario(stage):
        form = aiohttp.FormData()
        form.add_field("file", b'\r\n--x\r\nname="model"\r\n\r\nb' * 1000, filename="model")
        form.add_field("model", "org/a")
        status, _ = await stage.post(path, data=form)
        assert status == 200
        method, there, headers, body = stage.server.requests[-1]
        assert (method, there) == ("POST", path)
        assert headers["Content-Type"].startswith("multipart/form-data")
        assert named("multipart/form-data", headers["Content-Type"], bytearray(body)).name == "own"
        assert body.count(b'name="model"\r\n\r\nb') == 1000

    play(scenario, 'models: {a: {cmd: "s ${PORT}", aliases: [org/a], useModelName: own}}')


def test_a_plain_form_names_the_model(play):
    async def scenario(stage):
        status, _ = await stage.post("/v1/completions", data={"model": "a", "x": "1 2"})
        assert status == 200
        assert stage.server.requests[-1][3] == b"model=own&x=1+2"

    play(scenario, 'models: {a: {cmd: "s ${PORT}", useModelName: own}}')


def test_json_that_curl_calls_a_form_is_json(play):
    async def scenario(stage):
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        body = b'\n {"model": "a", "prompt": "1=2&3"}'
        status, _ = await stage.post("/v1/completions", data=body, headers=form)
        assert status == 200
        assert stage.server.last[2] == {"model": "own", "prompt": "1=2&3"}
        assert stage.server.requests[-1][2]["Content-Type"] == "application/json"

    play(scenario, 'models: {a: {cmd: "s ${PORT}", useModelName: own}}')


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nx\r\n--x--"),
        ("multipart/form-data; boundary=x", b"--x\r\n" * 5000),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n\r\n--x--',
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
            + b"m" * 600
            + b"\r\n--x--",
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="amodel"\r\n\r\na\r\n--x--',
        ),
    ],
)
def test_a_form_without_a_model_is_refused_in_a_sentence(header, body):
    with pytest.raises(ApiError) as caught:
        named("multipart/form-data", header, bytearray(body))
    assert caught.value.status == 400


def test_filters_and_the_servers_own_name(play):
    text = """
models:
  a:
    cmd: s ${PORT}
    useModelName: org/own
    filters:
      stripParams: "top_k, model"
      setParams: {temperature: 0.5, nested: {a: [1]}}
      setParamsByID: {"a:high": {effort: high}}
"""

    async def scenario(stage):
        await stage.post("/v1/chat/completions", json={"model": "a:high", "top_k": 3, "z": [{}]})
        want = {"model": "org/own", "z": [{}], "temperature": 0.5, "nested": {"a": [1]}}
        assert stage.server.last[2] == {**want, "effort": "high"}
        await stage.post("/v1/chat/completions", json={"model": "a"})
        assert "effort" not in stage.server.last[2]

    play(scenario, text)


def test_a_query_names_the_model(play):
    async def scenario(stage):
        assert (await stage.get("/v1/audio/voices?model=org%2Fa&x=1"))[0] == 200
        assert stage.server.last[:2] == ("GET", "/v1/audio/voices?model=org%2Fa&x=1")
        assert (await stage.get("/props"))[0] == 400

    play(scenario)


def test_paths_below_upstream_are_the_servers_own(play):
    async def scenario(stage):
        for path, there in (
            ("/upstream/a/", "/"),
            ("/upstream/a/slots?id=1%2F2", "/slots?id=1%2F2"),
            ("/upstream/org/a/any%2Fthing", "/any%2Fthing"),
            ("/upstream/org%2Fa/x", "/x"),
        ):
            assert (await stage.get(path))[0] == 200
            assert stage.server.requests[-1][1] == there
        async with stage.client.delete("/upstream/b/slots/1", data=b"{") as answer:
            assert answer.status == 200
        assert stage.server.requests[-1][:2] == ("DELETE", "/slots/1")
        assert stage.box.started == ["a", "b"]
        status, _ = await stage.get("/upstream/nobody/x")
        assert status == 404

    play(scenario)


def test_what_a_terminal_would_obey_in_a_path_stays_out_of_the_log(play, caplog):
    async def scenario(stage):
        assert (await stage.get("/upstream/a/x%0Dforged%1B%5B2J"))[0] == 200

    caplog.set_level("INFO")
    play(scenario)
    assert "/upstream/a/x%0Dforged%1B" in caplog.text
    assert not {"\r", "\x1b"} & set(caplog.text)


def test_a_models_page_is_reached_with_a_slash(play):
    async def scenario(stage):
        async with stage.client.get("/upstream/a?x=1", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (308, "/upstream/a/?x=1")
        assert not stage.server.requests

    play(scenario)


def test_ignored_paths_wake_nobody(play):
    async def scenario(stage):
        assert (await stage.get("/upstream/a/favicon.ico"))[0] == 409
        assert not stage.box.started
        await stage.post("/v1/completions", json={"model": "a"})
        assert (await stage.get("/upstream/a/favicon.ico"))[0] == 200

    play(scenario)


def test_a_model_behind_a_path(play):
    async def scenario(stage):
        await stage.post("/v1/completions", json={"model": "a"})
        assert stage.server.last[1] == "/base/v1/completions"

    play(scenario, 'models: {a: {cmd: s, proxy: "http://127.0.0.1:99/base/"}}')


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": "nobody"}', 404, "model_not_found"),
        (b"{}", 400, "model_missing"),
        (b"{", 400, "invalid_json"),
    ],
)
def test_what_names_no_model_is_refused(play, body, status, code):
    async def scenario(stage):
        found, said = await stage.post(
            "/v1/completions", data=body, headers={"Content-Type": "application/json"}
        )
        assert (found, said["error"]["code"]) == (status, code)

    play(scenario)


def test_unknown_paths_are_nobodys(play):
    async def scenario(stage):
        status, said = await stage.post("/v1/load_lora_adapter", json={"model": "a"})
        assert (status, said["error"]["code"]) == (404, "unknown_url")
        assert (await stage.get("/v1/chat/completions"))[0] == 404
        assert not stage.box.started

    play(scenario)


@pytest.mark.parametrize("name", ["box/x", "x", "any", "coder"])
def test_names_of_llama_swaps_peers_selectors_and_profiles_are_no_models(play, name):
    """As the warnings of their keys say."""
    text = """
models: {a: {cmd: "s ${PORT}"}}
peers: {box: {proxy: "http://10.0.0.9", models: [x]}}
selectors: {any: {strategy: warm, targets: [a]}}
profiles: {coding: {pins: {coder: a}}}
"""

    async def scenario(stage):
        status, said = await stage.post("/v1/completions", json={"model": name})
        assert (status, said["error"]["code"]) == (404, "model_not_found")
        assert [one["id"] for one in json.loads((await stage.get("/v1/models"))[1])["data"]] == [
            "a"
        ]
        assert not stage.box.started

    play(scenario, text)


def test_a_model_takes_so_many_requests_at_once(play):
    async def scenario(stage):
        stage.server.gate.clear()
        first = asyncio.create_task(stage.post("/v1/completions", json={"model": "a"}))
        await stage.server.until_asked()
        status, said = await stage.post("/v1/completions", json={"model": "a"})
        assert (status, said["error"]["code"]) == (429, "too_many_requests")
        stage.server.gate.set()
        assert (await first)[0] == 200
        assert (await stage.post("/v1/completions", json={"model": "a"}))[0] == 200

    play(scenario, 'models: {a: {cmd: "s ${PORT}", concurrencyLimit: 1}}')


def test_an_answer_that_does_not_begin_is_given_up(play):
    async def scenario(stage):
        stage.server.gate.clear()
        status, said = await stage.post("/v1/completions", json={"model": "a"})
        assert (status, said["error"]["code"]) == (502, "upstream_failed")

    play(scenario, 'models: {a: {cmd: "s ${PORT}", timeouts: {responseHeader: 0.2}}}')


def test_a_websocket_wakes_its_model_and_passes_both_ways(play):
    async def scenario(stage):
        address = "/v1/realtime?model=a&x=1"
        async with stage.client.ws_connect(address, protocols=["realtime", "other"]) as socket:
            assert socket.protocol == "realtime"
            await socket.send_str("hello")
            assert await socket.receive_str() == "you said hello"
            await socket.send_bytes(b"\0\xff")
            assert await socket.receive_bytes() == b"\0\xff"
            await socket.send_str("bye")
            message = await socket.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4001)
        assert stage.server.requests[-1][1] == "/v1/realtime?model=a&x=1"
        assert stage.box.started == ["a"]
        async with stage.client.ws_connect("/upstream/b/ws") as socket:
            await socket.send_str("x")
            assert await socket.receive_str() == "you said x"
        assert stage.box.started == ["a", "b"]

    play(scenario)


def test_a_websocket_that_counts_for_nothing(play):
    text = """
models:
  a: {cmd: "s ${PORT}", compat: {ignoreWebsockets: true}}
  b: {cmd: "s ${PORT}"}
"""

    async def scenario(stage):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await stage.client.ws_connect("/upstream/a/ws")
        assert caught.value.status == 409
        await stage.post("/v1/completions", json={"model": "a"})
        async with stage.client.ws_connect("/upstream/a/ws") as socket:
            await socket.send_str("x")
            assert await socket.receive_str() == "you said x"
            assert (await stage.post("/v1/completions", json={"model": "b"}))[0] == 200
            message = await socket.receive(timeout=5)
            assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        assert stage.box.started == ["a", "b"]

    play(scenario, text)


def test_a_path_without_websockets_is_said(play):
    async def scenario(stage):
        stage.server._socket = stage.server._stream  # what answers no handshake
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await stage.client.ws_connect("/upstream/a/ws")
        assert caught.value.status in (500, 502)

    play(scenario)


def test_a_changed_file_counts_for_the_next_request(play):
    from kybernate.api.models import read  # noqa: PLC0415

    async def scenario(stage):
        stage.serving.take(read('models: {b: {cmd: "s ${PORT}", aliases: [x]}}', {}).file)
        assert (await stage.post("/v1/completions", json={"model": "a"}))[0] == 404
        assert (await stage.post("/v1/completions", json={"model": "x"}))[0] == 200
        assert json.loads((await stage.get("/v1/models"))[1])["data"][0]["id"] == "b"

    play(scenario)


def test_a_limit_holds_over_a_change_of_the_file(play):
    async def scenario(stage):
        stage.server.gate.clear()
        first = asyncio.create_task(stage.post("/v1/completions", json={"model": "a"}))
        await stage.server.until_asked()
        stage.serving.take(stage.file)
        async with asyncio.timeout(5):
            status, _ = await stage.post("/v1/completions", json={"model": "a"})
        stage.server.gate.set()
        await first
        assert status == 429

    play(scenario, 'models: {a: {cmd: "s ${PORT}", concurrencyLimit: 1}}')


def test_a_longer_start_counts_once_the_file_says_so(play):
    async def scenario(stage):
        longer = read('models: {a: {cmd: "s ${PORT}", healthCheckTimeout: 1h}}', {}).file
        stage.serving.take(longer)
        assert stage.serving._desk.admission._limits.wait >= 3600

    play(scenario, 'models: {a: {cmd: "s ${PORT}"}}')


def test_the_log_of_a_model_that_is_left_out_is_not_waited_for(play):
    async def scenario(stage):
        async with asyncio.timeout(5):
            status, said = await stage.get("/logs/stream/b")
        assert (status, json.loads(said)["error"]["code"]) == (404, "model_left_out")

    play(scenario, lacks=["b"])
