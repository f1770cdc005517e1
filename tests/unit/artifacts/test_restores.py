"""What pods may ask for, and what is told to those who ask for what can't be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from kybernate.adapters.artifactgrants import read_grants
from kybernate.core.artifacts.grants import Grant
from kybernate.core.restores import RestoreAs, read_wish
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SAVED = "team-a/llama-0@20260131T120000Z-00c0ffee"
UID = "5e1f0a00-aaaa-bbbb-cccc-0123456789ab"


def test_a_pod_without_the_annotation_restores_nothing() -> None:
    assert read_wish({}) is None


def test_an_artifact_and_a_pod_are_told_apart() -> None:
    one = read_wish({keys.RESTORE_FROM: SAVED, keys.RESTORE_ELSE: "fail"})
    assert one is not None
    assert (one.artifact, one.uid, one.waits, one.source) == (SAVED, "", True, SAVED)
    assert one.namespace("team-b") == "team-a"
    other = read_wish({keys.RESTORE_FROM: f"pod/{UID}"})
    assert other is not None
    assert (other.artifact, other.uid, other.waits) == ("", UID, False)
    assert (other.source, other.namespace("team-b")) == (f"pod/{UID}", "team-b")
    assert other.kind is RestoreAs.SUCCESSOR


def test_a_clone_may_be_stopped() -> None:
    notes = {keys.RESTORE_FROM: SAVED, keys.RESTORE_AS: "clone", keys.CLONE_STOPPED: "true"}
    found = read_wish(notes)
    assert found is not None
    assert (found.kind, found.stopped) == (RestoreAs.CLONE, True)


@pytest.mark.parametrize(
    ("notes", "field"),
    [
        ({keys.RESTORE_FROM: ""}, keys.RESTORE_FROM),
        ({keys.RESTORE_FROM: "../../etc/passwd"}, keys.RESTORE_FROM),
        ({keys.RESTORE_FROM: "pod/"}, keys.RESTORE_FROM),
        ({keys.RESTORE_FROM: "pod/../x"}, keys.RESTORE_FROM),
        ({keys.RESTORE_FROM: SAVED + "\n"}, keys.RESTORE_FROM),
        ({keys.RESTORE_FROM: SAVED, keys.RESTORE_AS: "owner"}, keys.RESTORE_AS),
        ({keys.RESTORE_FROM: SAVED, keys.RESTORE_ELSE: "wait"}, keys.RESTORE_ELSE),
        ({keys.RESTORE_FROM: SAVED, keys.CLONE_STOPPED: "true"}, keys.CLONE_STOPPED),
        ({keys.RESTORE_FROM: SAVED, keys.CLONE_STOPPED: "yes"}, keys.CLONE_STOPPED),
        ({keys.RESTORE_AS: "clone"}, keys.RESTORE_AS),
        ({keys.RESTORE_ELSE: "fail"}, keys.RESTORE_ELSE),
    ],
)
def test_what_names_nothing_is_refused_by_its_field(notes: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_wish(notes)
    assert error.value.field == field


def test_grants_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "grants"
    row = {"namespace": "a", "to": ["b"], "artifacts": ["llama-0"], "until": 5}
    path.write_text(json.dumps([row, {"namespace": "c", "to": ["d"]}]))
    assert read_grants(path) == (Grant("a", ("b",), ("llama-0",), 5.0), Grant("c", ("d",)))


@pytest.mark.parametrize("text", ["", "{}", '[{"namespace": "a"}]', '[{"namespace": 1, "to": []}]'])
def test_a_file_that_is_no_list_of_grants_grants_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "grants"
    path.write_text(text)
    assert read_grants(path) == ()
    assert read_grants(tmp_path / "none") == read_grants(None) == ()
