from __future__ import annotations

import pytest

from kybernate.errors import ConfigError
from tests.cluster.given import given_kubeconfig, with_token
from tests.cluster.start.readiness import node_usable, seats_of

GIVEN = {
    "current-context": "a",
    "contexts": [
        {"name": "a", "context": {"cluster": "c", "user": "boss"}},
        {"name": "b", "context": {"cluster": "d", "user": "boss"}},
    ],
    "clusters": [{"name": "c", "cluster": {"server": "https://x"}}],
    "users": [{"name": "boss", "user": {"token": "old"}}],
}


def test_an_account_goes_to_the_same_cluster_with_its_own_token_only() -> None:
    found = with_token(GIVEN, "new")
    assert found["contexts"] == [{"name": "a", "context": {"cluster": "c", "user": "account"}}]
    assert found["users"] == [{"name": "account", "user": {"token": "new"}}]
    assert found["clusters"] == GIVEN["clusters"]


def test_a_kubeconfig_without_current_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="current context"):
        with_token({**GIVEN, "current-context": "z"}, "new")


def test_a_given_kubeconfig_must_exist(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("KYB_KUBECONFIG", raising=False)
    assert given_kubeconfig() is None
    monkeypatch.setenv("KYB_KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no file"):
        given_kubeconfig()


def test_a_node_is_usable_when_ready_and_without_taints() -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert node_usable({**ready, "spec": {}})
    assert not node_usable({**ready, "spec": {"taints": [{"key": "not-ready"}]}})
    assert not node_usable({"status": {}, "spec": {}})


def test_seats_of_all_sizes_are_counted() -> None:
    allocatable = {"kyb.ai/gpu-1x-seat": "8", "kyb.ai/gpu-2x-seat": "4", "cpu": "2"}
    assert seats_of({"status": {"allocatable": allocatable}}) == 12
    assert seats_of({}) == 0
