"""What pods say of their turns and idle times, and what counts where they say nothing."""

from __future__ import annotations

import math

import pytest

from kybernate import keys
from kybernate.api.turns import (
    max_wait,
    min_residency,
    prefetch,
    priority,
    read_idle,
    read_own_idle,
    read_turn,
)
from kybernate.errors import ConfigError


@pytest.mark.parametrize(
    ("of_job", "callable_", "weight"),
    [(True, True, 1.0), (True, False, 1.0), (False, True, None), (False, False, 1.0)],
)
def test_of_itself_a_job_always_wants_and_a_server_waits_and_nobody_starves(
    of_job, callable_, weight
):
    assert read_turn({}, of_job=of_job, callable_=callable_) == weight
    assert read_turn({keys.TURN: "auto"}, of_job=of_job, callable_=callable_) == weight


@pytest.mark.parametrize(
    ("text", "weight"),
    [("always", 1.0), ("always,weight=4", 4.0), ("on-request", None), ("auto,weight=2", None)],
)
def test_a_pod_may_say(text, weight):
    assert read_turn({keys.TURN: text}, of_job=False, callable_=True) == weight


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sometimes", "'sometimes'"),
        ("", "on-request, always, auto"),
        ("always,weight=0", "from 1 to 1000"),
        ("always,weight=1001", "weight=4"),
        ("always,weight=2.5", "weight=4"),
        ("always,weight=٣", "weight=4"),
        ("always,4", "weight=4"),
        ("always,weight=" + "9" * 5000, "weight=4"),
        ("on-request,weight=2", "leave it out"),
    ],
)
def test_a_turn_that_cannot_be_read_is_refused_with_what_to_write(text, said):
    with pytest.raises(ConfigError, match=keys.TURN) as refused:
        read_turn({keys.TURN: text}, of_job=False, callable_=True)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 400


def test_idle_times_are_by_the_tier_that_is_left():
    assert read_idle({keys.IDLE: "vram=30s, ram=5m,nvme=1h"}) == {
        "vram": 30.0,
        "ram": 300.0,
        "nvme": 3600.0,
    }
    assert read_idle({}) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "vram=30s,ram=5m,nvme=1h"),
        ("30s", "vram=30s,ram=5m,nvme=1h"),
        ("disk=1h", "names no tier"),
        ("vram=1s,vram=2s", "twice"),
        ("vram=soon", "is not a time"),
        ("vram=0s", "is not between"),
        ("vram=1ms", "is not between"),
        ("ram=999999999h", "is not between"),
    ],
)
def test_idle_times_that_cannot_be_read_are_refused_with_what_to_write(text, said):
    with pytest.raises(ConfigError, match=keys.IDLE) as refused:
        read_idle({keys.IDLE: text})
    assert said in str(refused.value)


def test_scaling_to_zero_is_for_policies_to_say():
    assert read_idle({keys.IDLE: "nvme=1h,object=2h"}) == {"nvme": 3600.0, "object": 7200.0}
    with pytest.raises(ConfigError, match=r"a CheckpointPolicy alone may say \(spec.idle.object\)"):
        read_own_idle({keys.IDLE: "object=2h"})
    assert read_own_idle({keys.IDLE: "nvme=1h"}) == {"nvme": 3600.0}


@pytest.mark.parametrize(
    ("idle", "deepest", "said"),
    [("ram=5m", "ram", "ram= sends its state to nvme"), ("nvme=1h", "nvme", "to object")],
)
def test_nothing_idles_past_the_tier_that_its_pod_allows(idle, deepest, said):
    notes = {keys.IDLE: idle, keys.PARK_TIER: deepest}
    with pytest.raises(ConfigError, match=keys.PARK_TIER) as refused:
        read_idle(notes)
    assert said in str(refused.value)
    assert read_idle({keys.IDLE: "vram=5s", keys.PARK_TIER: deepest}) == {"vram": 5.0}


@pytest.mark.parametrize(
    ("read", "name", "good", "bad"),
    [
        (min_residency, keys.MIN_RESIDENCY, {"0s": 0.0, "1m30s": 90.0, "1h": 3600.0}, ("2h", "5")),
        (max_wait, keys.MAX_WAIT, {"1s": 1.0, "24h": 86_400.0}, ("0s", "25h", "soon")),
        (
            *(prefetch, keys.PREFETCH),
            {"always": 0.0, "7": 7.0, "999999": 999_999.0},
            ("0", "1000000", "-1", "1.5", "ever", ""),
        ),
    ],
)
def test_residency_wait_and_prefetch(read, name, good, bad):
    assert read({}) is None
    for text, found in good.items():
        assert read({name: text}) == found
    for text in bad:
        with pytest.raises(ConfigError, match=name):
            read({name: text})


@pytest.mark.parametrize(
    ("text", "ranks"), [(None, 7), ("7", 7), ("6", 6), ("-1000000000", -1_000_000_000), ("8", 7)]
)
def test_a_priority_is_at_most_the_pods_own(text, ranks):
    assert priority({} if text is None else {keys.PRIORITY: text}, 7) == ranks


@pytest.mark.parametrize("text", ["", "-", "+1", "1.5", "high", "1000000001", "²", "--1"])
def test_a_priority_is_a_whole_number(text):
    with pytest.raises(ConfigError, match=keys.PRIORITY):
        priority({keys.PRIORITY: text}, 7)


def test_never_prefetched_is_a_number_that_the_journal_takes():
    assert math.isfinite(never := prefetch({keys.PREFETCH: "never"}))
    assert never > float(prefetch({keys.PREFETCH: "999999"}))
