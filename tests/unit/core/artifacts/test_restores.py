"""What pods may ask for, and what is told to those who ask for what can't be."""

from __future__ import annotations

import pytest

from kybernate import keys
from kybernate.api.restores import read_wish
from kybernate.api.restoring.grants import read_grant
from kybernate.core.artifacts.grants import Grant
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.errors import ConfigError

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


WHOLE: dict[str, object] = {"to": ["team-b"], "artifacts": ["*"], "until": "never"}


def grant(**spec: object) -> dict[str, object]:
    """For all of the namespace, unless `spec` says otherwise."""
    return exactly({**WHOLE, **spec})


def exactly(spec: object) -> dict[str, object]:
    return {"metadata": {"namespace": "team-a", "name": "g"}, "spec": spec}


def test_a_grant_is_read_from_its_object() -> None:
    whole = grant(to=["team-b"], artifacts=["llama-0"], until="1970-01-01t01:00:05+01:00")
    assert read_grant(whole) == Grant("team-a", ("team-b",), ("llama-0",), 5.0)
    assert read_grant(grant()) == Grant("team-a", ("team-b",), ("*",))


@pytest.mark.parametrize(
    "item",
    [
        exactly(None),
        *(exactly({name: WHOLE[name] for name in WHOLE if name != left}) for left in WHOLE),
        grant(to=[]),
        grant(to="team-b"),
        grant(to=[1]),
        grant(artifacts=[]),
        grant(artifacts={}),
        grant(artifacts=["*", "llama-0"]),
        grant(until=""),
        grant(until="tomorrow"),
        grant(until="2028-01-01T00:00:00"),
        grant(until=5),
        grant(onlyOn=["n1"]),
    ],
    ids=str,
)
def test_what_is_no_grant_is_named(item: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="ArtifactGrant team-a/g: spec") as error:
        read_grant(item)
    assert error.value.field == "ArtifactGrant team-a/g"


def test_a_template_is_named_and_its_pods_are_copies() -> None:
    found = read_wish({keys.RESTORE_FROM: "template/birch", keys.RESTORE_ELSE: "fail"})
    assert found is not None
    assert (found.template, found.artifact, found.uid) == ("birch", "", "")
    assert (found.kind, found.waits) == (RestoreAs.TEMPLATE, True)
    assert (found.source, found.namespace("team-b")) == ("template/birch", "team-b")
    clone = read_wish({keys.RESTORE_FROM: "template/birch", keys.RESTORE_AS: "clone"})
    assert clone is not None
    assert clone.kind is RestoreAs.CLONE
    for notes in (
        {keys.RESTORE_FROM: "template/"},
        {keys.RESTORE_FROM: "template/../x"},
        {keys.RESTORE_FROM: "template/team-a/birch"},
        {keys.RESTORE_FROM: "template/birch", keys.RESTORE_AS: "successor"},
    ):
        with pytest.raises(ConfigError, match=r"write template/<its name>|write template or clone"):
            read_wish(notes)
