"""Who may ask a box, and what a page that somebody visits can't."""

from __future__ import annotations

import base64

import pytest

from kybernate.api.models import read
from kybernate.errors import ConfigError, RefusedError
from kybernate.local.front.access import check_listen, is_loopback
from kybernate.local.front.serving import Serving

KEYED = """
apiKeys: [sk-one, sk-two]
models: {a: {cmd: "s ${PORT}"}}
"""
NAMED = 'allowedHosts: [box.lan]\nmodels: {a: {cmd: "s ${PORT}"}}'


def test_loopback_is_told_from_the_rest():
    own = ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")
    other = (
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "localhost.evil.com",
        "evil.com",
        "",
        "127.0.0.1.evil.com",
    )
    assert [is_loopback(one) for one in own] == [True] * len(own)
    assert [is_loopback(one) for one in other] == [False] * len(other)


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", ":8080", "[::]:8080", "box.lan:8080"])
def test_without_keys_other_machines_are_kept_out(listen):
    with pytest.raises(ConfigError) as caught:
        check_listen(read(f"listen: '{listen}'", {}).file)
    assert caught.value.field == "listen"
    assert "set apiKeys" in caught.value.problem
    check_listen(read(f"listen: '{listen}'\napiKeys: [k]", {}).file)
    check_listen(read("listen: localhost:8080", {}).file)


def test_a_key_is_needed_where_there_are_keys(play):
    basic = base64.b64encode(b"me:sk-two").decode()

    async def scenario(stage):
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer sk-three"}, 401),
            ({"Authorization": "Bearer sk-one "}, 200),
            ({"Authorization": "bearer sk-two"}, 200),
            ({"X-Api-Key": "sk-one"}, 200),
            ({"Authorization": f"Basic {basic}"}, 200),
            ({"Authorization": "Basic !"}, 401),
        ):
            for path in ("/v1/models", "/running", "/metrics", "/logs", "/api/tags", "/api/ps"):
                assert (await stage.get(path, headers=headers))[0] == status
            found, _ = await stage.post("/v1/completions", json={"model": "a"}, headers=headers)
            assert found == status
            found, _ = await stage.get("/upstream/a/x", headers=headers)
            assert found == status
        assert (await stage.get("/health"))[0] == 200
        assert stage.box.acts == []

    play(scenario, KEYED)


def test_a_models_server_never_sees_a_key(play):
    async def scenario(stage):
        for headers in ({"Authorization": "Bearer sk-one"}, {"X-Api-Key": "sk-one"}):
            await stage.post("/v1/completions", json={"model": "a"}, headers=headers)
            await stage.get("/upstream/a/x", headers=headers)
        seen = {name.lower() for _, _, headers, _ in stage.server.requests for name in headers}
        assert not seen & {"authorization", "x-api-key"}

    play(scenario, KEYED)


@pytest.mark.parametrize("host", ["evil.com", "evil.com:8080", "127.0.0.1.evil.com", "10.0.0.7"])
def test_a_page_whose_name_was_pointed_here_is_refused(play, host):
    async def scenario(stage):
        headers = {"Host": host}
        status, said = await stage.post("/v1/completions", json={"model": "a"}, headers=headers)
        assert (status, said["error"]["code"]) == (403, "host_not_allowed")
        assert (await stage.get("/health", headers=headers))[0] == 403
        assert (await stage.get("/unload", headers=headers))[0] == 403
        assert stage.box.acts == stage.box.started == []

    play(scenario)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:1", "[::1]:8", "a.localhost:9", "box.lan:3"]
)
def test_names_of_this_box_are_answered(play, host):
    async def scenario(stage):
        assert (await stage.get("/v1/models", headers={"Host": host}))[0] == 200

    play(scenario, NAMED)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.com"},
        {"Origin": "null"},
        {"Origin": "https://localhost.evil.com"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_page_of_another_site_is_refused(play, headers):
    async def scenario(stage):
        for path in ("/unload", "/v1/models", "/upstream/a/x", "/api/tags"):
            assert (await stage.get(path, headers=headers))[0] == 403
        text = {**headers, "Content-Type": "text/plain"}
        status, _ = await stage.post("/v1/completions", data=b'{"model": "a"}', headers=text)
        assert status == 403
        assert stage.box.acts == stage.box.started == []

    play(scenario)


def test_a_browsers_own_password_does_not_speak_for_a_page(play):
    basic = base64.b64encode(b"me:sk-one").decode()

    async def scenario(stage):
        shown = {"Authorization": f"Basic {basic}", "Origin": "https://evil.com"}
        assert (await stage.get("/unload", headers=shown))[0] == 403
        shown = {"Authorization": "Bearer sk-one", "Origin": "https://app.example"}
        async with stage.client.get("/v1/models", headers=shown) as answer:
            assert answer.status == 200
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"

    play(scenario, KEYED)


def test_a_page_of_the_same_domain_is_another_sites_unless_its_host_is_named(play):
    basic = base64.b64encode(b"me:sk-one").decode()
    named = {"Authorization": f"Basic {basic}", "Host": "box.lan:8080"}

    async def scenario(stage):
        for page in ({}, {"Referer": "http://wiki.lan/x"}, {"Referer": "http://["}):
            shown = {**named, "Sec-Fetch-Site": "same-site", **page}
            assert (await stage.get("/unload", headers=shown))[0] == 403
        assert stage.box.acts == []
        shown = {**named, "Sec-Fetch-Site": "same-site", "Referer": "http://box.lan:3000/"}
        assert (await stage.get("/v1/models", headers=shown))[0] == 200

    play(scenario, KEYED + "allowedHosts: [box.lan]\n")


def test_pages_of_this_machine_may_ask_and_read(play):
    async def scenario(stage):
        own = {"Origin": "http://localhost:3000"}
        asked = {**own, "Access-Control-Request-Method": "POST"}
        asked["Access-Control-Request-Headers"] = "authorization, x-a, b@d"
        async with stage.client.options("/v1/chat/completions", headers=asked) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
            assert answer.headers["Access-Control-Allow-Headers"] == "authorization, x-a"
        async with stage.client.post("/v1/completions", json={"model": "a"}, headers=own) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
        asked["Origin"] = "https://evil.com"
        async with stage.client.options("/v1/chat/completions", headers=asked) as answer:
            assert answer.status == 403
            assert "Access-Control-Allow-Origin" not in answer.headers

    play(scenario)


def test_an_address_that_another_program_has_is_told_with_what_to_do(play):
    async def scenario(stage):
        taken = f"127.0.0.1:{stage.serving.port}"
        second = Serving(stage.box, stage.file.model_copy(update={"listen": taken}))
        with pytest.raises(RefusedError, match=f"another program has {taken}; end it, or write"):
            await second.start()
        await second.stop()

    play(scenario)
