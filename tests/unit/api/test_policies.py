"""CheckpointPolicies as they are read: in the words of annotations, or refused by the field."""

from __future__ import annotations

from typing import Any

import pytest

from kybernate import keys
from kybernate.api.policies import read_policy
from kybernate.core.policy.effective import Label, PutAway, Relation
from kybernate.errors import ConfigError


def item(**spec: Any) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": "p", "uid": "u"}
    return {"metadata": meta, "spec": {"selector": {}, **spec}}


_LOWEST = {keys.TURN: "on-request", keys.PRIORITY: "0"}
_STAGED = {keys.TURN: "auto,weight=2", keys.MAX_WAIT: "2m", keys.PREFETCH: "always"}
SCHEDULED = {"cron": "0 8 * * 1-5", "timeZone": "Europe/Berlin", "duration": "10h"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, {}),
        ({"turn": {"mode": "on-request"}}, {keys.TURN: "on-request"}),
        ({"turn": {"mode": "always", "weight": 400}}, {keys.TURN: "always,weight=400"}),
        ({"turn": {"weight": 4}}, {keys.TURN: "auto,weight=4"}),
        (
            {"idle": {"nvme": "24h", "vram": "10m", "ram": "1h30m"}},
            {keys.IDLE: "vram=10m,ram=1h30m,nvme=24h"},
        ),
        ({"onRestoreFailure": "fail"}, {keys.RESTORE_ELSE: "fail"}),
        ({"onPreempt": "kill"}, {keys.ON_PREEMPT: "kill"}),
        (
            {"turn": {"minResidency": "5s", "maxWait": "2m"}},
            {keys.MIN_RESIDENCY: "5s", keys.MAX_WAIT: "2m"},
        ),
        ({"turn": {"mode": "on-request", "priority": 0}}, _LOWEST),
        ({"turn": {"weight": 2, "maxWait": "2m"}, "prefetch": "always"}, _STAGED),
        ({"ofANewerVersion": 1, "turn": {"mode": "auto", "more": 1}}, {keys.TURN: "auto"}),
    ],
)
def test_it_speaks_in_the_words_of_annotations(spec: dict[str, Any], words: dict[str, str]) -> None:
    assert read_policy(item(**spec)).words == words


def test_a_whole_one() -> None:
    expressions = [{"key": "tier", "operator": "NotIn", "values": ["dev"]}]
    selector = {"matchLabels": {"app": "llm"}, "matchExpressions": expressions}
    schedule = [{**SCHEDULED, "turn": {"mode": "on-request"}, "idle": {"vram": "30s"}}]
    found = read_policy(item(selector=selector, precedence=10, schedule=schedule))
    assert (found.namespace, found.name, found.uid, found.precedence) == ("shop", "p", "u", 10)
    assert found.selector == (
        Label("app", Relation.IN, frozenset({"llm"})),
        Label("tier", Relation.NOT_IN, frozenset({"dev"})),
    )
    (slot,) = found.schedule
    assert slot.words == {keys.TURN: "on-request", keys.IDLE: "vram=30s"}
    assert (slot.times.cron, str(slot.times.zone), slot.times.lasts) == (
        *("0 8 * * 1-5", "Europe/Berlin"),
        36_000.0,
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"turn": {"mode": "sometimes"}}, r"spec: kyb.ai/turn: is 'sometimes'"),
        ({"turn": {"mode": "on-request", "weight": 2}}, "on-request has no weight"),
        ({"idle": {"vram": "10ms"}}, "not between 1s"),
        ({"idle": {"ram": "9000h"}}, "a year"),
        ({"schedule": [{**SCHEDULED, "cron": "0 25 * * *"}]}, r"spec.schedule\[0\]: cron is"),
        ({"schedule": [SCHEDULED, {**SCHEDULED, "timeZone": "Mars"}]}, r"\[1\]: timeZone is"),
        ({"schedule": [{**SCHEDULED, "duration": "10 hours"}]}, r"\[0\].duration: '10 hours'"),
        ({"schedule": [{**SCHEDULED, "idle": {"vram": "x"}}]}, r"schedule\[0\]: "),
        ({"turn": {"minResidency": "2h"}}, r"spec: kyb.ai/min-residency: '2h' is not between"),
        ({"turn": {"priority": 10**9 + 1}}, "kyb.ai/priority: is '1000000001'"),
        ({"prefetch": "soon"}, "kyb.ai/prefetch: is 'soon'"),
        ({"limits": {"noProgress": "5s"}}, "spec.limits.noProgress: '5s' is less than 10s"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, "'Like'"),
    ],
)
def test_one_that_says_what_can_not_be_is_refused_by_the_field(
    spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_policy(item(**spec))


@pytest.mark.parametrize("every", ["0s", "59s", "900ms"])
def test_pods_move_once_in_a_minute_at_most(every: str) -> None:
    with pytest.raises(ConfigError, match=rf"spec.rebalance.every: '{every}' is less than 1m"):
        read_policy(item(rebalance={"every": every}))
    found = read_policy(item(rebalance={"every": "1m"})).rebalance
    assert found is not None
    assert found.every == 60.0


def test_limits_of_what_is_put_away() -> None:
    assert read_policy(item()).limits == PutAway()
    limits = {"parallel": 2, "secondsPerGiB": 30, "noProgress": "1m"}
    assert read_policy(item(limits=limits)).limits == PutAway(2, 30, 60.0)
