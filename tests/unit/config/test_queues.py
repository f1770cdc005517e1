"""Queues of others: nobody of ours writes what says when a job runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from images.cache import REPOSITORY
from images.chart import PARTS, objects

RULES = [
    (one["metadata"]["name"], rule)
    for folder, _ in PARTS
    for one in objects(REPOSITORY / "config" / folder)
    if one["kind"] in ("ClusterRole", "Role")
    for rule in one.get("rules") or ()
]
READS = {"get", "list", "watch"}
QUEUES = {"batch", "kueue.x-k8s.io", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "*"}
SOURCES = [
    path
    for folder in ("controller", "webhook", "extender", "nodeagent", "proxy", "kybernate")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
]
WORDS = {
    "kybernate/core/plans/steps.py": "a step of a plan",
    "kybernate/core/views/explain.py": "whom to suspend, as a document",
}
"""Where the word stands for something else."""


@pytest.mark.parametrize(("name", "rule"), RULES, ids=lambda one: one if type(one) is str else "")
def test_no_account_of_ours_may_change_a_job(name: str, rule: dict[str, list[str]]) -> None:
    if set(rule.get("apiGroups") or ()) & QUEUES:
        assert set(rule["verbs"]) <= READS, name


def test_there_are_rules_to_look_at() -> None:
    assert len(RULES) > 20
    assert any("apps" in rule.get("apiGroups", ()) for _, rule in RULES)


def test_no_code_of_ours_names_the_field() -> None:
    assert len(SOURCES) > 300
    found = {path for path in map(Path, SOURCES) if names_it(path.read_text())}
    assert {str(path.relative_to(REPOSITORY)) for path in found} == set(WORDS)


def names_it(source: str) -> bool:
    return any(
        isinstance(one, ast.Constant) and one.value == "suspend"
        for one in ast.walk(ast.parse(source))
    )


def test_the_field_would_be_found() -> None:
    assert names_it("api.patch(path, {'spec': {'suspend': True}})")
    assert not names_it("suspend = 'suspended'")
