"""The picture of `kubectl kyb top` in docs/."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from tests.demo.top import DRAWN, drawn


def test_the_picture_is_what_the_command_shows_today():
    assert drawn() == DRAWN.read_text(), "make states"


def test_the_picture_is_svg_with_each_of_the_lists():
    text = DRAWN.read_text()
    assert Xml.fromstring(text).tag.endswith("svg")  # noqa: S314 - ours
    assert "https:" not in text
    for part in ("PRODUCT", "BUDGET", "REQUESTS", "shop/aspen-3b-0", "waking", "nvme"):
        assert part in text, part
