"""The page of a box: its files, its data, and who gets it."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace

from proxy.page import stream

KEYED = """
apiKeys: [secret]
models: {a: {cmd: "s ${PORT}"}}
"""


async def event(answer):
    """The next event, and its data."""
    lines = [await answer.content.readline() for _ in range(3)]
    kind, data = lines[0].decode().split(" ", 1)[1], lines[1].decode().split(" ", 1)[1]
    return kind.strip(), json.loads(data)


def test_the_page_may_run_and_load_its_own_files_only(play):
    async def scenario(stage):
        async with stage.client.get("/ui") as answer:
            assert str(answer.url).endswith("/ui/")
            policy, text = answer.headers["Content-Security-Policy"], await answer.text()
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "<style" not in text
        assert " style=" not in text
        assert text.count("<script") == text.count('<script type="module" src="main.js"></script>')
        for name, kind in (("main.js", "text/javascript"), ("page.css", "text/css")):
            async with stage.client.get(f"/ui/{name}") as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for name in ("nothing.js", "..%2Fdoor.py", "%2e%2e/door.py"):
            assert (await stage.get(f"/ui/{name}"))[0] == 404

    play(scenario)


def test_no_file_of_the_page_makes_html_of_text():
    from proxy.page.door import _FOLDER  # noqa: PLC0415

    programs = [file.read_text() for file in _FOLDER.glob("*.js")]
    assert programs
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert not any(word in one for one in programs), word


def test_the_stream_begins_with_all_and_goes_on_with_changes(play):
    async def scenario(stage):
        async with stage.client.get("/ui/events") as answer:
            assert answer.content_type == "text/event-stream"
            kind, page = await event(answer)
            assert (kind, page["version"], page["acts"]) == (
                "page", 1, ["park", "wake", "pin", "unload"],
            )  # fmt: skip
            assert {one["state"] for one in page["seats"].values()} == {"waiting"}
            assert page["lanes"]["GPU-0"]["memory"] == 1 << 30
            await stage.post("/v1/completions", json={"model": "a"})
            seen = {}
            while "state" not in seen or "total" not in seen:
                kind, change = await event(answer)
                assert kind == "change"
                seen |= change.get("seats", {}).get("a", {})
                seen |= {key: change[key] for key in ("total",) if key in change}
            assert seen["state"] == "active"
            assert seen["total"]["rate"] == 0.1
        async with stage.client.get("/ui/events") as answer:
            assert (await event(answer))[1]["seats"]["a"]["state"] == "active"

    play(scenario)


def test_a_swap_is_told_whole_however_short(play):
    async def scenario(stage):
        await stage.post("/v1/completions", json={"model": "a"})
        async with stage.client.get("/ui/events") as answer:
            await event(answer)
            for name in "bab":
                await stage.post("/v1/completions", json={"model": name})
            spans = []
            while len(spans) < 3:
                spans += (await event(answer))[1].get("spans", [])
            assert [(one["model"], one["state"]) for one in spans] == [
                ("a", "active"), ("b", "active"), ("a", "active"),
            ]  # fmt: skip
            assert all(one["begin"] <= one["end"] for one in spans)
        async with stage.client.get("/ui/events") as answer:
            assert len((await event(answer))[1]["spans"]) == 3

    play(scenario)


def test_its_data_needs_the_key_and_the_browser_asks_for_none_itself(play):
    async def scenario(stage):
        assert (await stage.get("/ui/"))[0] == 200
        async with stage.client.get("/ui/events") as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with stage.client.get(
            "/ui/events", headers={"Authorization": "Bearer secret"}
        ) as answer:
            assert (await event(answer))[0] == "page"

    play(scenario, KEYED)


def test_a_page_of_another_site_gets_nothing(play):
    async def scenario(stage):
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert (await stage.get("/ui/events", headers=headers))[0] == 403
            assert (await stage.get("/ui/", headers=headers))[0] == 403

    play(scenario)


def test_a_key_that_is_taken_away_ends_the_stream(play):
    async def scenario(stage):
        headers = {"Authorization": "Bearer secret"}
        async with stage.client.get("/ui/events", headers=headers) as answer:
            await event(answer)
            stage.serving.take(stage.file.model_copy(update={"api_keys": ("other",)}))
            stage.box._seat("a", stage.box.rows["a"].state)
            stage.box.rows["a"] = replace(stage.box.rows["a"], pinned=True)
            assert await answer.content.read() == b""

    play(scenario, KEYED)


def test_a_client_that_does_not_read_is_cut_off_and_others_are_not(play, monkeypatch):
    monkeypatch.setattr(stream, "PACE_S", 0.01)

    async def scenario(stage):
        port, channels = stage.serving.port, stage.serving._front._page._stream._channels
        idle = socket.create_connection(("127.0.0.1", port))
        idle.sendall(f"GET /ui/events HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        async with stage.client.get("/ui/events") as answer:
            await event(answer)
            while sum(len(one.readers) for one in channels.values()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            number = 0
            while sum(len(one.readers) for one in channels.values()) == 2:
                # More than the kernel's buffers hold, piece by piece.
                number += 1
                gpus = tuple(f"{number:08}{'x' * 30_000}" for _ in range(8))
                stage.box.rows["a"] = replace(stage.box.rows["a"], gpus=gpus)
                stage.box._seat("a", stage.box.rows["a"].state)
                async with asyncio.timeout(5):
                    while f"{number:08}".encode() not in await answer.content.readany():
                        pass
            (channel,) = channels.values()
            assert len(channel.readers) == 1
        idle.close()

    play(scenario)


def test_only_so_many_pages_are_open_at_once(play, monkeypatch):
    monkeypatch.setattr(stream, "CLIENTS", 1)

    async def scenario(stage):
        async with stage.client.get("/ui/events") as answer:
            await event(answer)
            status, text = await stage.get("/ui/events")
            assert (status, json.loads(text)["error"]["code"]) == (503, "too_many_pages")

    play(scenario)


def test_one_client_leaves_pages_for_others(play, monkeypatch):
    monkeypatch.setattr(stream, "OF_ONE", 1)

    async def scenario(stage):
        own, others = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        async with stage.client.get("/ui/events", headers=own) as answer:
            await event(answer)
            async with stage.client.get("/ui/events", headers=own) as refused:
                said = await refused.json()
                assert (refused.status, said["error"]["code"]) == (503, "too_many_pages")
            async with stage.client.get("/ui/events", headers=others) as page:
                assert (await event(page))[0] == "page"

    play(scenario, 'apiKeys: [one, two]\nmodels: {a: {cmd: "s ${PORT}"}}')


def test_a_large_page_comes_whole(play, monkeypatch):
    """What all begin with is nobody's delay."""
    monkeypatch.setattr(stream, "BEHIND", 100)

    async def scenario(stage):
        async with stage.client.get("/ui/events") as answer:
            assert (await event(answer))[0] == "page"

    play(scenario)


def test_an_open_page_does_not_hold_the_end_up(play):
    async def scenario(stage):
        answer = await stage.client.get("/ui/events")
        await event(answer)
        began = asyncio.get_running_loop().time()
        await stage.serving.stop()
        assert asyncio.get_running_loop().time() - began < 2.0

    play(scenario)


def test_nor_does_a_log_that_is_followed(play):
    async def scenario(stage):
        answer = await stage.client.get("/logs/stream/a")
        assert await answer.content.readline() == b"a began\n"
        began = asyncio.get_running_loop().time()
        await stage.serving.stop()
        assert asyncio.get_running_loop().time() - began < 2.0

    play(scenario)
