"""The controller's settings: a lease outlasts the calls that are made in its name."""

from __future__ import annotations

import pytest

from kybernate.errors import ConfigError
from kybernate.runtime.load import load
from kybernate.settings.controller import ControllerSettings


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"lease": "l", "lease_s": "11"}, "lease_s.*write at least 12"),
        ({"lease": "l", "agent_timeout_s": "9"}, "lease_s.*write at least 27"),
        ({"probe_listen": "9448"}, "probe_listen.*host:port"),
        ({"threads": "0"}, "threads"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, str], text: str) -> None:
    values.setdefault("lease_s", "15")
    with pytest.raises(ConfigError, match=text):
        load(ControllerSettings, "X", values, {}, None)


def test_one_alone_needs_no_lease() -> None:
    found = load(ControllerSettings, "X", {"lease_s": "2"}, {}, None)
    assert (found.lease, found.probe_listen) == ("", "127.0.0.1:9448")
