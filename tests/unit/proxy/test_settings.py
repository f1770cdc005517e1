from __future__ import annotations

import pytest
from pydantic import ValidationError

from kybernate.errors import ConfigError
from kybernate.runtime.load import load
from kybernate.settings.common import host_port
from kybernate.settings.proxy import ProxySettings

MIB = 2**20


def test_agents_are_read_from_one_line():
    settings = load(ProxySettings, "KYB_PROXY", {}, {"KYB_PROXY_AGENTS": "n1=a:1, n2=b:2"}, None)
    assert settings.agents == {"n1": "a:1", "n2": "b:2"}


@pytest.mark.parametrize(
    ("text", "pair"), [("[::1]:80", ("::1", 80)), ("0.0.0.0:0", ("0.0.0.0", 0))]
)
def test_listen_is_host_port(text, pair):
    assert host_port(ProxySettings(listen=text).listen) == pair


@pytest.mark.parametrize(
    ("variable", "value", "field"),
    [
        ("KYB_PROXY_LISTEN", "8080", "listen"),
        ("KYB_PROXY_AGENTS", "n1", "agents"),
        ("KYB_PROXY_WAIT_LIMIT_S", "0", "wait_limit_s"),
        ("KYB_PROXY_PATHS", "/v1/completions,v1/embeddings", "paths"),
        ("KYB_PROXY_PATHS", "/v1/../metrics", "paths"),
        ("KYB_PROXY_PATHS", "/v1/*", "paths"),
        ("KYB_PROXY_ALIASES", "gpt-4", "aliases"),
        ("KYB_PROXY_PICKERS", "m=http://epp:9090/metrics", "pickers"),
        ("KYB_PROXY_PICKERS", "shop/m=epp:9090", "pickers"),
    ],
)
def test_a_wrong_setting_is_named(variable, value, field):
    with pytest.raises(ConfigError) as caught:
        load(ProxySettings, "KYB_PROXY", {}, {variable: value}, None)
    assert caught.value.field == field


def test_further_names_lead_to_full_ones_and_each_to_one():
    settings = ProxySettings(aliases="best=shop/llama, org/best=shop/llama")
    assert settings.aliases == {"best": "shop/llama", "org/best": "shop/llama"}
    with pytest.raises(ValidationError, match="write best=NAMESPACE/MODEL, not best=llama"):
        ProxySettings(aliases="best=llama")
    with pytest.raises(ValidationError, match="'best' is in aliases and in adapters"):
        ProxySettings(aliases="best=shop/a", adapters="best=shop/b")


def test_one_client_has_an_eighth_of_the_room_or_as_much_as_the_largest_body():
    assert ProxySettings().client_bytes == 32 * MIB == ProxySettings().max_held_bytes // 8
    assert ProxySettings(max_held_bytes=800 * MIB).client_bytes == 100 * MIB
    assert ProxySettings(max_body_bytes=64 * MIB).client_bytes == 64 * MIB
    assert ProxySettings(max_held_bytes_per_client=50 * MIB).client_bytes == 50 * MIB


@pytest.mark.parametrize(
    "given",
    [{"max_held_bytes": 36 * MIB}, {"max_held_bytes_per_client": 32 * MIB - 1}],
    ids=["of all", "of one client"],
)
def test_the_largest_body_must_have_room(given):
    with pytest.raises(ValidationError, match="such a body would always be refused"):
        ProxySettings(**given)


def test_paths_are_allowed_as_they_are_written_and_no_others():
    settings = ProxySettings()
    assert settings.allows("/v1/chat/completions")
    for path in ("/v1/load_lora_adapter", "/v1/chat/completions/", "/v1//completions", "/sleep"):
        assert not settings.allows(path)


def test_a_star_allows_what_lies_below_v1_and_can_not_be_taken_for_anything_else():
    settings = load(ProxySettings, "KYB_PROXY", {}, {"KYB_PROXY_PATHS": "*, /api/chat"}, None)
    for path in ("/v1/rerank", "/v1/a/b.c", "/api/chat"):
        assert settings.allows(path)
    for path in ("/sleep", "/v1/../sleep", "/v1/%2e%2e/sleep", "/v1/a//b", "/v1/.", "/v1/"):
        assert not settings.allows(path)
