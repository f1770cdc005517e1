"""Watching through ends, errors and forgotten versions, on a scripted source."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.adapters.k8s import Watcher, watch
from kybernate.errors import ConflictError, RetryableError
from tests.unit.k8s.script import LIMIT_S, Script, until

if TYPE_CHECKING:
    from collections.abc import Iterator


def pod(name: str, version: int = 1, uid: str | None = None) -> dict[str, Any]:
    meta = {
        "namespace": "d",
        "name": name,
        "uid": uid or f"u-{name}",
        "resourceVersion": str(version),
    }
    return {"metadata": meta}


class Seen:
    """The events that arrived, as `KIND name@version`."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.arrived = threading.Condition()

    def __call__(self, kind: str, item: dict[str, Any]) -> None:
        meta = item["metadata"]
        with self.arrived:
            self.events.append(f"{kind} {meta['name']}@{meta['resourceVersion']}")
            self.arrived.notify_all()

    def wait_for(self, *events: str) -> None:
        with self.arrived:
            self.arrived.wait_for(lambda: len(self.events) >= len(events), LIMIT_S)
            assert self.events == list(events)
            self.events.clear()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def watcher(script: Script, seen: Seen) -> Iterator[Watcher]:
    watcher = Watcher(script, "/api/v1/pods", {"fieldSelector": "x"}, seen, "pods", page=2)
    watcher.start()
    yield watcher
    script.feed().close()
    script.listing()
    watcher.stop()


def test_lists_in_pages_then_watches_from_there(
    script: Script, seen: Seen, watcher: Watcher
) -> None:
    script.listing(pod("a"), pod("b"), more="next")
    assert not watcher.synced.wait(0.05)
    script.listing(pod("c"))
    seen.wait_for("ADDED a@1", "ADDED b@1", "ADDED c@1")
    assert watcher.synced.wait(LIMIT_S)
    feed = script.feed()
    feed.send("MODIFIED", pod("a", 11))
    feed.send("DELETED", pod("b", 12))
    seen.wait_for("MODIFIED a@11", "DELETED b@12")
    first, second, watch = script.asked
    assert (first["limit"], "continue" in first) == (2, False)
    assert (second["continue"], second["fieldSelector"]) == ("next", "x")
    assert (watch["resourceVersion"], watch["allowWatchBookmarks"]) == ("10", True)
    assert watch["timeoutSeconds"] >= 240


def test_a_watch_that_ends_is_resumed_from_its_last_bookmark(
    script: Script, seen: Seen, watcher: Watcher
) -> None:
    script.listing(pod("a"))
    feed = script.feed()
    feed.send("BOOKMARK", {"metadata": {"resourceVersion": "99"}})
    feed.close()
    script.feed().send("ADDED", pod("b", 100))
    seen.wait_for("ADDED a@1", "ADDED b@100")
    assert script.asked[-1]["resourceVersion"] == "99"


def test_a_broken_watch_is_resumed_and_said(script: Script, seen: Seen, watcher: Watcher) -> None:
    script.listing(pod("a", 1), version=5)
    script.feed().items.put(RetryableError("connection reset"))
    until(lambda: watcher.last_error is not None)
    assert watcher.last_error == "pods: connection reset"
    script.feed().send("MODIFIED", pod("a", 6))
    seen.wait_for("ADDED a@1", "MODIFIED a@6")
    assert watcher.last_error is None
    assert script.asked[-1]["resourceVersion"] == "5"


@pytest.mark.parametrize("answer", ["event", "status"])
def test_a_forgotten_version_is_listed_anew(
    script: Script, seen: Seen, watcher: Watcher, answer: str
) -> None:
    """What vanished, changed or was replaced meanwhile is reported; what is the same is not."""
    script.listing(pod("same"), pod("changed"), pod("gone"), pod("replaced"))
    seen.wait_for("ADDED same@1", "ADDED changed@1", "ADDED gone@1", "ADDED replaced@1")
    if answer == "event":
        script.feed().send("ERROR", {"code": 410, "message": "too old resource version"})
    else:
        script.watches.put(ConflictError("too old resource version"))
    script.listing(pod("same"), pod("changed", 8), pod("replaced", 9, uid="other"), version=20)
    seen.wait_for("MODIFIED changed@8", "DELETED replaced@1", "ADDED replaced@9", "DELETED gone@1")
    script.feed().send("ADDED", pod("new", 21))
    seen.wait_for("ADDED new@21")
    assert script.asked[-1]["resourceVersion"] == "20"


def test_a_failed_list_is_repeated(script: Script, seen: Seen, watcher: Watcher) -> None:
    script.lists.put(RetryableError("connection refused"))
    until(lambda: watcher.last_error is not None)
    assert not watcher.synced.is_set()
    script.listing(pod("a"))
    seen.wait_for("ADDED a@1")


def test_one_that_can_not_be_read_stands_in_nobodys_way(script: Script, seen: Seen) -> None:
    def keep(item: dict[str, Any]) -> dict[str, Any]:
        if "spoilt" in item:
            raise ValueError(item["spoilt"])
        return item

    watcher = Watcher(script, "/api/v1/pods", {}, seen, "pods", keep=keep)
    watcher.start()
    script.listing(pod("a"), {**pod("bad"), "spoilt": "year 10000"}, pod("b"))
    seen.wait_for("ADDED a@1", "ADDED b@1")
    feed = script.feed()
    feed.send("MODIFIED", {**pod("a", 11), "spoilt": "again"})
    feed.send("MODIFIED", pod("bad", 12))
    feed.send("DELETED", {**pod("a", 13), "spoilt": "again"})
    seen.wait_for("MODIFIED bad@12", "DELETED a@1")
    assert watcher.last_error is None
    script.feed().close()
    script.listing()
    watcher.stop()


def test_a_receiver_that_fails_loses_one_event_only(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    names: list[str] = []

    def receive(kind: str, item: dict[str, Any]) -> None:
        names.append(item["metadata"]["name"])
        if names == ["a"]:
            raise ZeroDivisionError

    with caplog.at_level(logging.CRITICAL):
        watcher = Watcher(script, "/api/v1/pods", {}, receive, "pods")
        watcher.start()
        script.listing(pod("a"), pod("b"))
        assert watcher.synced.wait(LIMIT_S)
        script.feed()
        watcher.stop()
    assert names == ["a", "b"]


def test_objects_are_reduced_before_they_are_kept(script: Script, seen: Seen) -> None:
    def keep(item: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": item["metadata"]}

    items: list[dict[str, Any]] = []
    watcher = Watcher(script, "/p", {}, lambda _kind, item: items.append(item), "p", keep=keep)
    watcher.start()
    script.listing({**pod("a"), "spec": {"large": "x"}})
    assert watcher.synced.wait(LIMIT_S)
    script.feed()
    watcher.stop()
    assert items == [pod("a")]


def test_stop_ends_a_silent_watch_at_once(script: Script, watcher: Watcher) -> None:
    script.listing()
    script.feed()
    until(lambda: len(script.asked) == 2)
    started = time.monotonic()
    watcher.stop()
    assert time.monotonic() - started < LIMIT_S / 2, "it waited for the watch to end"
    assert watcher.last_error is None


def test_a_refresh_lists_anew_and_goes_on_from_there(
    watcher: Watcher, script: Script, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    pauses = (delays.append(0.0) or 0.0 for _ in itertools.count())
    monkeypatch.setattr(watch, "_PAUSES", pauses)
    watcher._pauses = pauses
    script.listing(pod("a"))
    script.feed()
    seen.wait_for("ADDED a@1")
    asked = watcher.refresh()
    assert not watcher.is_fresh(asked)
    script.listing(pod("a", 2), pod("b", 11), version=11)
    feed = script.feed()
    seen.wait_for("MODIFIED a@2", "ADDED b@11")
    feed.send("DELETED", pod("b", 12))
    seen.wait_for("DELETED b@12")
    assert watcher.is_fresh(asked)
    assert not delays, "a refresh is no interruption, so nothing backs off"
    assert script.asked[-1]["resourceVersion"] == "11"


def test_a_refresh_ends_the_wait_after_an_interruption(
    watcher: Watcher, script: Script, seen: Seen
) -> None:
    script.listing()
    watcher._pauses = iter((60.0,))
    script.feed().items.put(RetryableError("connection reset"))
    until(lambda: watcher.last_error is not None)
    asked = watcher.refresh()
    script.listing(pod("a"))
    script.feed()
    seen.wait_for("ADDED a@1")
    until(lambda: watcher.is_fresh(asked))


def test_a_refresh_counts_only_lists_that_began_after_it(
    watcher: Watcher, script: Script, seen: Seen
) -> None:
    until(lambda: bool(script.asked))
    asked = watcher.refresh()
    script.listing(pod("a"))
    script.feed()
    seen.wait_for("ADDED a@1")
    assert not watcher.is_fresh(asked)
    script.listing(pod("a"), pod("b", 2))
    script.feed()
    seen.wait_for("ADDED b@2")
    until(lambda: watcher.is_fresh(asked))
