from __future__ import annotations

import pytest

from images.debs import DebSet, mirror
from kybernate.errors import ConfigError


def _write(folder, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_mirror_is_found_in_both_forms_of_sources(tmp_path) -> None:
    _write(tmp_path, "sources.list", "deb [arch=amd64] https://one.test/debian bookworm main\n")
    assert mirror(tmp_path) == "https://one.test/debian"
    _write(tmp_path, "sources.list.d/debian.sources", "Types: deb\nURIs: http://two.test/debian\n")
    assert mirror(tmp_path) == "http://two.test/debian"


def test_archives_of_others_and_security_are_passed_over(tmp_path) -> None:
    text = "deb https://x.test/tools all main\ndeb https://s.test/debian-security bookworm main\n"
    _write(tmp_path, "sources.list", text)
    with pytest.raises(ConfigError, match="no Debian mirror"):
        mirror(tmp_path)


def test_a_set_has_its_own_place_in_the_cache_for_what_is_asked() -> None:
    one = DebSet("runtime", "forky", (("containerd", "1"),))
    assert one.key == DebSet("runtime", "forky", (("containerd", "1"),)).key
    assert one.key != DebSet("runtime", "forky", (("containerd", "2"),)).key
    assert one.key != DebSet("runtime", "forky", (("containerd", "1"),), closure=True).key
