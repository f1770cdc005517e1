from __future__ import annotations

import pytest

from kybernate.errors import ConfigError
from kybernate.runtime.load import load
from kybernate.settings.proxy import ProxySettings


def test_agents_are_read_from_one_line():
    settings = load(ProxySettings, "KYB_PROXY", {}, {"KYB_PROXY_AGENTS": "n1=a:1, n2=b:2"}, None)
    assert settings.agents == {"n1": "a:1", "n2": "b:2"}


@pytest.mark.parametrize(
    ("text", "pair"), [("[::1]:80", ("::1", 80)), ("0.0.0.0:0", ("0.0.0.0", 0))]
)
def test_listen_is_taken_apart(text, pair):
    assert ProxySettings(listen=text).host_port == pair


@pytest.mark.parametrize(
    ("variable", "value", "field"),
    [
        ("KYB_PROXY_LISTEN", "8080", "listen"),
        ("KYB_PROXY_AGENTS", "n1", "agents"),
        ("KYB_PROXY_WAIT_LIMIT_S", "0", "wait_limit_s"),
    ],
)
def test_a_wrong_setting_is_named(variable, value, field):
    with pytest.raises(ConfigError) as caught:
        load(ProxySettings, "KYB_PROXY", {}, {variable: value}, None)
    assert caught.value.field == field
