"""Times as annotations name them."""

from __future__ import annotations

import pytest

from kybernate.core.quantity import parse_duration
from kybernate.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("2m", 120.0), ("1m30.5s", 90.5), ("200ms", 0.2), ("1h", 3600.0)],
)
def test_a_time_is_read(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "30", "s", "soon", "1 s", "-1s", "1s!", "1d"])
def test_what_is_no_time_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"^field: .* is not a time; write for example 30s"):
        parse_duration(text, "field")
