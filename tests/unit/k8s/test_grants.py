"""What is granted, as ArtifactGrants come, change and go."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.core.artifacts.grants import Grant
from kybernate.errors import NotFoundError, RetryableError
from kybernate.runtime.grants import ArtifactGrants
from tests.unit.k8s.script import Script, until

if TYPE_CHECKING:
    from collections.abc import Iterator

A = Grant("team-a", ("team-b",), ("*",))
WHOLE = {"to": ["team-b"], "artifacts": ["*"], "until": "never"}


def item(name: str, version: int = 1, *, leaving: bool = False, **spec: object) -> dict[str, Any]:
    meta = {"namespace": "team-a", "name": name, "uid": f"u-{name}", "resourceVersion": version}
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    return {"metadata": {**meta, **gone}, "spec": {**WHOLE, **spec}}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def grants(script: Script) -> Iterator[ArtifactGrants]:
    made = ArtifactGrants()
    yield made
    script.feed()
    made.stop()


def test_without_an_api_server_nothing_is_granted_and_it_is_asked_again() -> None:
    made = ArtifactGrants()
    with pytest.raises(RetryableError, match="the list is under way"):
        made.all()
    assert made.not_ready() is None
    made.stop()


def test_until_they_are_listed_nothing_is_granted(script: Script, grants: ArtifactGrants) -> None:
    grants.start(script)
    assert grants.not_ready()
    with pytest.raises(RetryableError, match="the list is under way"):
        grants.all()
    script.lists.put(NotFoundError("the server could not find the requested resource"))
    until(lambda: grants.not_ready() is None)
    with pytest.raises(RetryableError, match="could not find the requested"):
        grants.all()
    feed = script.feed()
    script.listing(item("a"))
    until(lambda: _granted(grants) == (A,))
    feed.items.put(RetryableError("the connection broke"))
    script.watches.put(RetryableError("no connection"))
    script.feed()
    # Two lists and three watches.
    until(lambda: len(script.asked) == 5)
    assert grants.all() == (A,)


def test_what_changes_counts_at_once(script: Script, grants: ArtifactGrants) -> None:
    script.listing(item("a"), item("b", to=["team-c"]))
    feed = script.feed()
    grants.start(script)
    until(lambda: _granted(grants) == (A, Grant("team-a", ("team-c",), ("*",))))
    feed.send("DELETED", item("a", 2))
    until(lambda: grants.all() == (Grant("team-a", ("team-c",), ("*",)),))
    feed.send("MODIFIED", item("b", 3))
    until(lambda: grants.all() == (A,))
    feed.send("MODIFIED", item("b", 4, leaving=True))
    until(lambda: grants.all() == ())


def test_one_that_cannot_be_read_is_named_and_grants_nothing(
    script: Script, grants: ArtifactGrants, caplog: pytest.LogCaptureFixture
) -> None:
    script.listing(item("a"), item("wrong", to="*"))
    feed = script.feed()
    with caplog.at_level(logging.WARNING):
        grants.start(script)
        until(lambda: _granted(grants) == (A,))
        assert f"{keys.ARTIFACT_GRANT_KIND} team-a/wrong" in caplog.text
        feed.send("MODIFIED", item("a", 2, artifacts=[]))
        until(lambda: grants.all() == ())
    assert f"{keys.ARTIFACT_GRANT_KIND} team-a/a: spec" in caplog.text


def _granted(grants: ArtifactGrants) -> tuple[Grant, ...] | None:
    try:
        return grants.all()
    except RetryableError:
        return None
