"""Who may share a GPU."""

from __future__ import annotations

import pytest

from kybernate.core.ledger.sharing import Sharing, Who, parse_sharing, refusal, strangers
from kybernate.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("any", Sharing()),
        ("namespace", Sharing(Who.NAMESPACE)),
        ("labels:team", Sharing(Who.LABELS, ("team",))),
        (" labels: stage, team ,", Sharing(Who.LABELS, ("stage", "team"))),
    ],
)
def test_the_rule_is_read(text, rule):
    assert parse_sharing(text) == rule


@pytest.mark.parametrize("text", ["", "all", "labels", "labels:", "any:x", "namespace:x"])
def test_what_is_no_rule_is_refused_with_what_to_write(text):
    with pytest.raises(ConfigError, match=r"sharing: .* write any, namespace, or labels:"):
        parse_sharing(text)


def test_parties():
    assert Sharing().party("shop", {"team": "a"}) == ""
    assert Sharing(Who.NAMESPACE).party("shop", {}) == "namespace shop"
    teams = Sharing(Who.LABELS, ("stage", "team"))
    assert teams.party("shop", {"team": "a"}) == "stage=, team=a"
    assert teams.party("shop", {"team": "a"}) == teams.party("office", {"team": "a", "x": "y"})
    assert teams.party("shop", {"team": "a"}) != teams.party("shop", {"team": "b"})


def test_strangers_are_other_parties_once_each():
    assert strangers("namespace a", ["namespace b", "namespace a", "namespace b"]) == (
        "namespace b",
    )
    assert strangers("", ["", ""]) == ()


def test_the_reason_names_both_parties_and_the_setting():
    text = refusal(["G0", "G1"], "namespace a", ["namespace b", "namespace c"])
    assert text == (
        "the GPUs of G0, G1 are used by pods of namespace b and of namespace c, the pod is of "
        "namespace a, and the cluster's rule (sharing) keeps them apart"
    )
