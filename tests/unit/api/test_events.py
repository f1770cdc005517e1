from __future__ import annotations

import re

import pytest

from kybernate.api import events
from kybernate.types import PodRef, PodUid

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


def made(name: str = "llama", sentence: str = "it is parked"):
    about = events.of_pod(PodRef("shop", name, PodUid("u1")))
    source = {"component": "kyb-agent", "host": "n1"}
    return events.event(about, "Parked", sentence, warning=True, source=source, wall=1_700_000_000)


def test_an_event_says_of_what_it_is_and_when() -> None:
    one = made()
    assert one["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "shop",
        "name": "llama",
        "uid": "u1",
    }
    assert (one["type"], one["count"], one["message"]) == ("Warning", 1, "it is parked")
    assert one["firstTimestamp"] == one["lastTimestamp"] == "2023-11-14T22:13:20Z"


def test_no_sentence_is_too_long_for_the_api_server() -> None:
    assert len(made(sentence="x" * 5000)["message"]) == 1024


@pytest.mark.parametrize("name", ["a", "a" * 199 + ".b", "a" * 199 + "-b", "a" * 253])
def test_however_long_a_name_is_the_events_is_one(name: str) -> None:
    whole = made(name)["metadata"]["generateName"] + "x7k2p"
    assert re.fullmatch(_SUBDOMAIN, whole)
    assert len(whole) <= 253
