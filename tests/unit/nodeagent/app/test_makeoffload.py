"""The tiers below RAM from the settings: what is missing is named."""

from __future__ import annotations

import os
import sys
import time

import pytest

from kybernate.adapters.objects.objects import PacedObjects
from kybernate.adapters.registry.objects import RegistryObjects
from kybernate.errors import ConfigError
from kybernate.settings.agent import AgentSettings
from kybernate.types import Tier
from nodeagent.app.makeoffload import _places, _version_of, limits, make_offload, signed_for


def settings(tmp_path, **more):
    return AgentSettings(node="n1", state_dir=tmp_path / "state", run_dir=tmp_path, **more)


def program(path, says="Version: 4.2.1"):
    path.write_text(f"#!{sys.executable}\nprint({says!r})\n")
    path.chmod(0o755)
    return path


def test_without_criu_there_is_nothing_below(tmp_path):
    assert make_offload(settings(tmp_path), None, None, lambda: None, None) is None


@pytest.mark.parametrize(
    ("criu", "enter", "words"),
    [
        (True, None, "^kyb_enter: criu needs it"),
        (False, True, "^criu: .* is no program"),
        (True, False, "^kyb_enter: .* is no program"),
    ],
)
def test_what_is_missing_is_named(tmp_path, criu, enter, words):
    given = {
        "criu": program(tmp_path / "criu") if criu else tmp_path / "no-criu",
        "kyb_enter": enter and program(tmp_path / "kyb-enter"),
    }
    if enter is False:
        given["kyb_enter"] = tmp_path / "no-enter"
    with pytest.raises(ConfigError, match=words):
        make_offload(settings(tmp_path, **given), None, None, lambda: None, None)


def test_a_program_that_is_no_criu_is_named(tmp_path):
    assert _version_of(program(tmp_path / "criu")) == "4.2.1"
    with pytest.raises(ConfigError, match=r"^criu: .* name a CRIU of 4\.2"):
        _version_of(program(tmp_path / "other", "hello"))


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("Version: 3.17.1", r"^criu: .*is version 3\.17\.1; name a static CRIU of 4\.2"),
        ("Version: 4.1", r"^criu: .*is version 4\.1;"),
        ("Version: 4.2.1", r"^criu: .*is not static: .*no distribution's"),
        ("Version: 10.0", r"^criu: .*is not static"),
    ],
)
def test_an_old_or_dynamic_criu_is_refused(tmp_path, says, words):
    given = {"criu": program(tmp_path / "criu", says), "kyb_enter": program(tmp_path / "enter")}
    with pytest.raises(ConfigError, match=words):
        make_offload(settings(tmp_path, **given), None, None, lambda: None, None)


@pytest.mark.parametrize(
    ("given", "signed", "warned"),
    [
        ({"registry_url": "https://r:1"}, True, False),
        ({"registry_url": "https://r:1", "object_access": "credentials"}, False, True),
        ({}, False, True),
        ({"registry_url": "https://r:1", "object_store": "/objects"}, False, False),
    ],
)
def test_who_signs_for_the_object_store(tmp_path, caplog, given, signed, warned):
    found = settings(tmp_path, **{"object_store": "s3://bucket/x", **given})
    assert signed_for(found) is signed
    assert [text for text in caplog.messages if "has the credentials of s3://bucket/x" in text] or (
        not warned
    )
    assert bool(caplog.messages) is warned


def test_a_place_that_is_signed_for_needs_no_credentials(tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    given = {"object_store": "s3://bucket/x", "registry_url": "https://r:1"}
    place = _places(settings(tmp_path, **given), None)[Tier.OBJECT]
    assert isinstance(place.objects, RegistryObjects)
    assert (place.root, place.read_back) == (None, True)


def test_the_object_store_alone_is_as_fast_as_set(tmp_path):
    (tmp_path / "objects").mkdir()
    given = {"object_store": str(tmp_path / "objects"), "object_bytes_per_s": 1_000_000}
    places = _places(settings(tmp_path, **given), None)
    assert not isinstance(places[Tier.NVME].objects, PacedObjects)
    begun = time.monotonic()
    for name in ("a", "b", "c"):
        places[Tier.OBJECT].objects.put(f"packs/{name}", bytes(200_000))
    # The first passes at once, a tenth of a second's worth was saved up.
    assert time.monotonic() - begun >= 0.3
    unset = _places(settings(tmp_path, object_store=str(tmp_path / "objects")), None)
    assert not isinstance(unset[Tier.OBJECT].objects, PacedObjects)


def test_limits_are_as_set_or_as_the_disk_is(tmp_path):
    some = settings(tmp_path)
    disk = os.statvfs(tmp_path)
    found = limits(some, _places(some, None))
    assert found == {Tier.NVME: int(disk.f_blocks * disk.f_frsize * 0.8)}
    (tmp_path / "objects").mkdir()
    more = settings(tmp_path, object_store=str(tmp_path / "objects"), nvme_bytes=7)
    assert limits(more, _places(more, None)) == {Tier.NVME: 7, Tier.OBJECT: sys.maxsize}
    assert (tmp_path / "state" / "saved").stat().st_mode & 0o777 == 0o700
