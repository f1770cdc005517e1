from __future__ import annotations

import pytest

from kybernate.errors import ConfigError
from kybernate.runtime.load import load
from kybernate.settings.webhook import WebhookSettings


def loaded(**environ: str) -> WebhookSettings:
    names = {f"KYB_WEBHOOK_{name.upper()}": value for name, value in environ.items()}
    return load(WebhookSettings, "KYB_WEBHOOK", {}, names, None)


def test_the_url_joins_the_names() -> None:
    names = ("kyb-webhook.kyb-system.svc", "localhost", "127.0.0.1", "hooks.example")
    assert set(names) <= set(loaded(url="https://hooks.example:1/x").server_names)
    assert loaded(url="https://127.0.0.1:1").server_names.count("127.0.0.1") == 1


def test_variables_are_json() -> None:
    assert loaded(environment='{"A": "1"}').environment == {"A": "1"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("environment", "A=1"),
        ("environment", '{"CUDA_VISIBLE_DEVICES": "0"}'),
        ("listen", "18443"),
        ("probe_listen", "localhost:http"),
        ("url", "http://x"),
        ("leaf_days", "0"),
        ("min_grace_s", "-1"),
    ],
)
def test_wrong_settings_are_named(field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=field):
        loaded(**{field: value})
