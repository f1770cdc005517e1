"""The page of a cluster's proxy: its files for everyone, its data for whom it concerns."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import make_mocked_request

from kybernate.core import clients
from proxy.clients import Clients
from proxy.openai import ApiError
from proxy.page.board import Board

TEAM, ALL = "k" * 40, "a" * 40
KEYS = {"team": TEAM, "all": ALL}


def folder_of_clients(folder):
    for name, key, namespaces in (("team", TEAM, ["team"]), ("all", ALL, None)):
        kept = None if namespaces is None else frozenset(namespaces)
        record = clients.record(name, kept, clients.digest_of(key))
        (folder / name).write_text(record.text())
    return folder


async def event(answer):
    """The next event, and its data."""
    lines = [await answer.content.readline() for _ in range(3)]
    kind, data = (line.decode().partition(" ")[2] for line in lines[:2])
    return kind.strip(), json.loads(data)


def test_it_shows_seats_as_they_change_and_nothing_to_press(play):
    async def scenario(stage):
        await stage.seat(state="parked", granted=False)
        async with stage.client.get("/ui/") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        async with stage.client.get("/ui/events") as answer:
            kind, page = await event(answer)
            assert (kind, page["acts"], page["logs"]) == ("page", [], False)
            assert page["commands"]
            assert page["seats"]["a"]["state"] == "parked"
            assert list(page["lanes"]) == ["n1/G0"]
            for state in ("waking", "active", "parking", "parked"):
                stage.agent.name_seat(stage.model.address, state=state)
            spans = []
            while len(spans) < 3:
                _, change = await event(answer)
                spans += change.get("spans", [])
            assert [one["state"] for one in spans] == ["waking", "active", "parking"]

    play(scenario)


def test_a_page_that_fails_once_is_told_of_later_changes(play, monkeypatch):
    page, fails, failed = Board.page, [], asyncio.Event()

    def fail_once(self, client):
        if fails and fails.pop():
            failed.set()
            raise ValueError("a page that can't be made")
        return page(self, client)

    monkeypatch.setattr(Board, "page", fail_once)

    async def scenario(stage):
        await stage.seat(state="parked", granted=False)
        async with stage.client.get("/ui/events") as answer:
            await event(answer)
            fails.append(True)
            stage.agent.name_seat(stage.model.address, state="waking")
            await failed.wait()
            stage.agent.name_seat(stage.model.address, state="active")
            seats = {}
            while seats.get("a", {}).get("state") != "active":
                seats |= (await event(answer))[1].get("seats", {})

    play(scenario)


@pytest.mark.parametrize("order", [("team", "all"), ("all", "team")])
def test_one_page_that_always_fails_keeps_no_other_waiting(play, monkeypatch, tmp_path, order):
    page, failing = Board.page, []

    def fail(self, client):
        if failing and client.namespaces is not None:
            raise ValueError("a page that can't be made")
        return page(self, client)

    monkeypatch.setattr(Board, "page", fail)

    async def scenario(stage):
        stage.agent.name_seat(stage.model.address, state="parked", namespace="team")
        async with contextlib.AsyncExitStack() as stack:
            pages = {}
            for name in order:
                headers = {"Authorization": f"Bearer {KEYS[name]}"}
                asked = stage.client.get("/ui/events", headers=headers)
                pages[name] = await stack.enter_async_context(asked)
                await event(pages[name])
            failing.append(True)
            stage.agent.name_seat(stage.model.address, state="active", namespace="team")
            states = set()
            while "active" not in states:
                seats = (await event(pages["all"]))[1].get("seats", {})
                states |= {one.get("state") for one in seats.values()}

    play(scenario, auth="keys", clients_dir=folder_of_clients(tmp_path))


def test_it_says_who_waits_and_how_long_requests_waited(play):
    async def scenario(stage):
        await stage.seat(granted=False)
        async with stage.client.get("/ui/events") as answer:
            await event(answer)
            asked = stage.asked()
            while (await event(answer))[1].get("models", {}).get("default/m", {}).get(
                "waiting"
            ) != 1:
                pass
            stage.agent.lease("grant")
            assert (await asked)[0] == 200
            seen = {}
            while not {"waiting", "rate", "p50"} <= seen.keys():
                seen |= (await event(answer))[1].get("models", {}).get("default/m", {})
            assert (seen["waiting"], seen["rate"]) == (0, 0.1)
            assert seen["p50"] > 0

    play(scenario)


def test_a_key_shows_its_own_namespaces_and_none_shows_nothing(play, tmp_path):
    async def scenario(stage):
        for uid, namespace in (("a", "team"), ("b", "secret")):
            stage.agent.name_seat(stage.model.address, uid=uid, model=uid, namespace=namespace)
        async with stage.client.get("/ui/") as answer:
            assert answer.status == 200
        async with stage.client.get("/ui/events") as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "seats" not in await answer.text()
        seen = {}
        for key in (TEAM, ALL):
            headers = {"Authorization": f"Bearer {key}"}
            async with stage.client.get("/ui/events", headers=headers) as answer:
                while len(seen.get(key, {})) < (1 if key == TEAM else 2):
                    _, data = await event(answer)
                    seen[key] = seen.get(key, {}) | data.get("seats", {})
                if key == TEAM:
                    assert "secret" not in json.dumps(data)
        assert set(seen[TEAM]) == {"a"}
        assert set(seen[ALL]) == {"a", "b"}

    play(scenario, auth="keys", clients_dir=folder_of_clients(tmp_path))


def test_a_page_of_another_site_asks_nothing_without_a_key(play):
    """A form can name a model in plain text, and the browser lets it without asking before."""

    async def scenario(stage):
        await stage.seat()
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
            headers = {"Sec-Fetch-Site": site, "Content-Type": "text/plain"}
            asked = stage.client.post(
                "/v1/chat/completions", data=b'{"model": "m"}', headers=headers
            )
            async with asked as answer:
                assert answer.status == status
            async with stage.client.get("/ui/events", headers=headers) as answer:
                assert answer.status == status
            async with stage.client.get("/ui/", headers=headers) as answer:
                assert answer.status == 200
        assert len(stage.model.requests) == 1
        headers = {"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer of-somebody-before-it"}
        assert (await stage.asked(headers=headers))[0] == 200

    play(scenario)


class Shown:
    """A connection on which a browser showed a certificate."""

    def get_extra_info(self, name, default=None):
        return {"subject": ((("commonName", "team"),),)} if name == "peercert" else default


def test_a_certificate_does_not_speak_for_a_page_of_another_site(tmp_path):
    (tmp_path / "team").write_text(clients.record("team", None, None).text())
    known = Clients(SimpleNamespace(auth="either", clients_dir=tmp_path, serve_tls_dir=None))
    known.refresh()
    own, foreign = (
        make_mocked_request("POST", "/", headers={"Sec-Fetch-Site": site}, transport=Shown())
        for site in ("same-origin", "cross-site")
    )
    assert known.who(own).name == "team"
    with pytest.raises(ApiError, match="another site") as refused:
        known.who(foreign)
    assert refused.value.status == 403
