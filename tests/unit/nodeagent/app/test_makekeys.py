"""Whose keys an agent asks for, and by which pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kybernate.adapters.keys.artifactkeys import WrapKeys, make_folder
from kybernate.adapters.registry.nodekeys import Asker, NodeKeys
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.runtime.identity import Identity
from kybernate.settings.agent import AgentSettings
from kybernate.types import ArtifactId, PodRef, PodUid
from nodeagent.app.makekeys import askers, make_keys

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ONE = ArtifactId("team-a/llama-0@20260131T120000Z-00c0ffee")


@dataclass
class Named:
    pod: PodRef


@dataclass
class Wishes:
    restore: RestoreWish | None


@dataclass
class Seat:
    identity: Named
    wishes: Wishes


def seat(namespace: str, uid: str, wish: RestoreWish | None = None) -> Any:
    return Seat(Named(PodRef(namespace, "p", PodUid(uid))), Wishes(wish))


def test_a_namespaces_pods_ask_and_those_that_want_a_state_of_it() -> None:
    seats = [
        seat("team-b", "u1", RestoreWish(ONE)),
        seat("team-a", "u2"),
        seat("team-a", "u3", RestoreWish(ONE)),
        seat("team-b", "u4", RestoreWish(uid=PodUid("u1"))),
        seat("team-c", "u5"),
    ]
    assert askers(seats, "team-a") == [
        Asker("team-a", "u2"),
        Asker("team-a", "u3"),
        Asker("team-b", "u1", ONE),
    ]
    assert askers(seats, "team-d") == []


def test_wrapping_keys_of_its_own_are_told_of_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_folder(tmp_path, "here")
    given = {"node": "n1", "artifact_keys": tmp_path, "state_dir": tmp_path}
    own = Identity("n1", tmp_path)
    alone = make_keys(AgentSettings.model_validate(given), own, tuple)
    assert isinstance(alone.kms, WrapKeys)
    told = AgentSettings.model_validate({**given, "registry_url": "https://127.0.0.1:1"})
    found = make_keys(told, own, tuple)
    assert isinstance(found.kms, NodeKeys)
    assert "has wrap-N.key, which opens the artifacts of every namespace" in caplog.text
    by, wrapped = found.kms.wrap(b"s" * 32, "team-a")
    assert alone.kms.unwrap(by, wrapped, "team-a") == b"s" * 32
