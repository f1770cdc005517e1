"""What a policy's status says: whom it selects and governs, and whether it counts."""

from __future__ import annotations

from kybernate.api.policies import dump_policy_status
from kybernate.core.policy.effective import MOST, Label, Policy, Relation, in_order
from kybernate.core.policy.findings import (
    Counts,
    Findings,
    Labelled,
    PolicyReason,
    findings,
    governed_by,
)
from kybernate.core.policy.snapshots import Made, Snapshots

PODS = [Labelled("1", "a", {"app": "llm"}), Labelled("2", "b", {})]
ALL = Policy("u1", "shop", "all")
LLM = Policy("u2", "shop", "llm", (Label("app", Relation.EXISTS),), 5)
NOBODY = Policy("u3", "shop", "nobody", (Label("app", Relation.IN, frozenset({"x"})),))


def of(policy: Policy, *policies: Policy) -> Findings:
    counting = in_order(policies)
    mine, matched = governed_by(policy, counting, PODS)
    return findings(policy, counting, len(mine), matched)


def test_each_pod_is_governed_by_one() -> None:
    assert governed_by(ALL, in_order([ALL, LLM]), PODS) == ((PODS[1],), 2)
    assert governed_by(LLM, in_order([ALL, LLM]), PODS) == ((PODS[0],), 1)
    found = of(ALL, ALL, LLM)
    assert (found.reason, found.matched, found.governed) == (PolicyReason.GOVERNS, 2, 1)


def test_why_it_governs_none() -> None:
    assert of(NOBODY, NOBODY).reason is PolicyReason.SELECTS_NONE
    over = Policy("u4", "shop", "over", precedence=9)
    assert of(ALL, ALL, over).reason is PolicyReason.OVERRULED
    many = [Policy(f"m{n}", "shop", f"m{n}", precedence=1) for n in range(MOST)]
    assert of(ALL, ALL, *many).reason is PolicyReason.TOO_MANY


def test_snapshots_are_counted_where_there_may_be_some() -> None:
    made = [
        Made("1", "1", "a", 10.0, 20.0, sealed=True),
        Made("2", "2", "a", 30.0, 40.0),
        Made("3", "3", "a", 50.0),
    ]
    regular = Policy("u", "shop", "p", snapshots=Snapshots(900.0))
    assert findings(regular, [regular], 1, 1, made).snapshots == Counts(1, 1, 20.0)
    assert findings(regular, [regular], 1, 1).snapshots == Counts(0, 0, 0.0)
    assert findings(ALL, [ALL], 1, 1, made).snapshots == Counts(1, 1, 20.0), "they are still there"
    assert findings(ALL, [ALL], 1, 1).snapshots is None


def test_a_condition_tells_since_when_it_is_so() -> None:
    good = Findings(PolicyReason.GOVERNS, "so", 2, 1)
    first = dump_policy_status(good, None, 3, 60.0)
    (told,) = first["conditions"]
    assert (told["status"], told["reason"], told["observedGeneration"]) == ("True", "Governs", 3)
    none = Findings(PolicyReason.SELECTS_NONE, "none")
    (later,) = dump_policy_status(none, first, 4, 120.0)["conditions"]
    assert later["lastTransitionTime"] == told["lastTransitionTime"] == "1970-01-01T00:01:00Z"
    wrong = Findings(PolicyReason.INVALID, "x" * 50_000)
    (bad,) = dump_policy_status(wrong, first, 4, 120.0)["conditions"]
    assert (bad["status"], bad["lastTransitionTime"]) == ("False", "1970-01-01T00:02:00Z")
    assert len(bad["message"]) == 32768
