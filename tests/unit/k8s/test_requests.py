"""Requests are found by what they are about, and one that can't be read no more."""

from __future__ import annotations

import threading
import time
from operator import attrgetter
from typing import Any, cast

import pytest

from kybernate.adapters.k8s.requests import RequestIndex
from kybernate.errors import RefusedError


def item(name: str, version: str = "1", **spec: object) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": name, "uid": name, "resourceVersion": version}
    stamp = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**meta, **stamp}, "spec": {"pod": "a", "mode": "Evict", **spec}}


@pytest.fixture
def index() -> RequestIndex:
    return RequestIndex(cast("Any", None), attrgetter("pod"))


def test_requests_are_known_by_what_they_are_about(index: RequestIndex) -> None:
    index.on_event("ADDED", item("one"))
    index.on_event("ADDED", item("two"))
    index.on_event("MODIFIED", item("one", mode="Fly"))
    assert [request.name for request, _ in index.of("shop", "a").values()] == ["two"]
    assert index.of("shop", "b") == index.of("park", "a") == {}
    assert [index.has("shop", name) for name in ("one", "two", "three")] == [True, True, False]
    index.on_event("DELETED", item("two"))
    index.on_event("DELETED", item("two"))
    assert index.of("shop", "a") == {}
    assert not index.has("shop", "two")


def test_one_that_is_about_something_else_now_is_found_there_alone(index: RequestIndex) -> None:
    index.on_event("ADDED", item("one"))
    index.on_event("MODIFIED", item("one", version="2", pod="b"))
    assert index.of("shop", "a") == {}
    assert [version for _, version in index.of("shop", "b").values()] == ["2"]


def test_what_is_about_nothing_is_not_kept() -> None:
    index = RequestIndex(cast("Any", None), lambda request: request.pod if request.ended else None)
    index.on_event("ADDED", item("one"))
    assert index.of("shop", "a") == {}
    assert index.has("shop", "one"), "its name is taken all the same"


class Refusing:
    """An API server of the release before: this account may not list requests. It has not answered
    until it is `asked` to."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def get(self, *_: object, **__: object) -> dict[str, Any]:
        assert self.asked.wait(10)
        raise RefusedError("checkpointrequests is forbidden (HTTP 403)")


def test_an_api_server_that_lists_no_requests_holds_up_nobody() -> None:
    api = Refusing()
    requests = RequestIndex(cast("Any", api), attrgetter("pod"))
    requests.watch.start()
    assert "first list of CheckpointRequests" in (requests.not_ready() or "")
    api.asked.set()
    end = time.monotonic() + 10
    while requests.not_ready() and time.monotonic() < end:
        time.sleep(0.01)
    requests.watch.stop()
    assert requests.not_ready() is None
    assert not requests.watch.synced.is_set()
