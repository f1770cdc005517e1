"""Namespaces' keys at a node: when the registry is asked, and when a key is forgotten."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from kybernate.adapters.keys.artifactkeys import WrapKeys, wrapping_id
from kybernate.adapters.registry import keywire, nodekeys
from kybernate.adapters.registry.nodekeys import FRESH_S, Asker, NodeKeys
from kybernate.errors import ConflictError, DeadlineError, RefusedError, RetryableError

NS = "team-a"


class Registry:
    """What the registry's client answers."""

    def __init__(self) -> None:
        self.keys = {NS: os.urandom(32)}
        self.leases: set[str] = {"u1"}
        self.fails: Exception | None = None
        self.asked: list[keywire.KeyWish] = []
        self.seconds = 3600.0
        self.may_lease = True

    def namespace_key(
        self, namespace: str, wish: keywire.KeyWish, _deadline: float
    ) -> keywire.GivenKey:
        self.asked.append(wish)
        if self.fails:
            raise self.fails
        if wish.pod not in self.leases:
            raise ConflictError("take a lease first")
        key = self.keys[namespace]
        if wish.id not in (None, wrapping_id(key)):
            return keywire.GivenKey(
                namespace=namespace, uid="x", key=(b"d" * 32).hex(), seconds=self.seconds
            )
        sealed = keywire.SealedKey(
            id=wrapping_id(key), uid="x", made_ms=1, by="aa", wrapped="bb" * 30
        )
        return keywire.GivenKey(
            namespace=namespace, uid="x", key=key.hex(), sealed=sealed, seconds=self.seconds
        )

    def lease(self, pod: tuple[str, str], _wish: Any, _deadline: float) -> None:
        if not self.may_lease:
            raise ConflictError("another node has it")
        self.leases.add(pod[1])


@pytest.fixture
def registry() -> Registry:
    return Registry()


class Node:
    def __init__(self, registry: Registry, files: WrapKeys | None = None) -> None:
        self.pods = [Asker(NS, "u1")]
        self.time = 0.0
        self.keys = NodeKeys(
            lambda: registry,  # type: ignore[arg-type, return-value]
            lambda ns: [one for one in self.pods if ns == NS],
            lambda key: WrapKeys((key,)),
            files,
            lambda: self.time,
        )


def test_it_is_asked_for_once_and_used_for_all(registry: Registry) -> None:
    node = Node(registry)
    by, wrapped = node.keys.wrap(b"s" * 32, NS)
    assert node.keys.unwrap(by, wrapped, NS) == b"s" * 32
    assert len(registry.asked) == 1
    assert node.keys.own(by).uid == "x"
    assert node.keys.own("00").id == ""
    assert WrapKeys((registry.keys[NS],)).unwrap(by, wrapped, NS) == b"s" * 32


def test_a_lease_is_taken_where_there_is_none(registry: Registry) -> None:
    registry.leases.clear()
    Node(registry).keys.wrap(b"s", NS)
    assert registry.leases == {"u1"}


def test_without_a_pod_or_a_lease_it_waits(registry: Registry) -> None:
    node = Node(registry)
    registry.leases.clear()
    registry.may_lease = False
    with pytest.raises(RetryableError, match="another node"):
        node.keys.wrap(b"s", NS)
    node.pods.clear()
    with pytest.raises(RetryableError, match="no pod of namespace"):
        node.keys.wrap(b"s", NS)


def test_with_the_registry_away_it_goes_on_with_what_it_has(registry: Registry) -> None:
    node = Node(registry)
    by, wrapped = node.keys.wrap(b"s", NS)
    registry.fails = DeadlineError("nobody answers")
    node.time = 2 * FRESH_S
    assert node.keys.unwrap(by, wrapped, NS) == b"s"
    assert len(registry.asked) == 2
    node.time = registry.seconds + 1
    with pytest.raises(RetryableError, match="nobody answers"):
        node.keys.unwrap(by, wrapped, NS)


@pytest.mark.parametrize("fails", [RefusedError("it was destroyed"), ConflictError("not yours")])
def test_a_registry_that_says_no_takes_it_away(registry: Registry, fails: Exception) -> None:
    node = Node(registry)
    by, wrapped = node.keys.wrap(b"s", NS)
    (held,) = node.keys._own.values()
    registry.fails = fails
    node.time = FRESH_S + 1
    with pytest.raises((RefusedError, RetryableError)):
        node.keys.unwrap(by, wrapped, NS)
    assert held.key == bytes(32)
    assert not node.keys._own


def test_with_the_last_pod_of_its_namespace_it_is_forgotten(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself: nobody has to ask for anything."""
    monkeypatch.setattr(nodekeys, "SWEEP_S", 0.01)
    node = Node(registry)
    by, wrapped = node.keys.wrap(b"s", NS)
    node.keys.unwrap("ab" * 8, wrapped, NS)
    held = [*node.keys._own.values(), *node.keys._opened.values()]
    assert len(held) == 2
    node.pods.clear()
    for _ in range(500):
        if not (node.keys._own or node.keys._opened or node.keys._sweeping):
            break
        time.sleep(0.01)
    assert not node.keys._own
    assert not node.keys._opened
    assert all(one.key == bytes(32) for one in held)
    with pytest.raises(RetryableError):
        node.keys.unwrap(by, wrapped, NS)


def test_what_a_key_of_before_wrapped_the_registry_opens(registry: Registry) -> None:
    node = Node(registry)
    for _ in range(2):
        assert node.keys.unwrap("ab" * 8, "cd" * 60, NS) == b"d" * 32
    assert len(registry.asked) == 1
    assert registry.asked[0].wrapped == "cd" * 60


def test_files_of_its_own_are_used_as_before(registry: Registry) -> None:
    """As long as nodes of before may have to open it; what they didn't wrap is asked for."""
    files = WrapKeys((os.urandom(32),))
    node = Node(registry, files)
    by, wrapped = node.keys.wrap(b"s", NS)
    assert files.unwrap(by, wrapped, NS) == b"s" == node.keys.unwrap(by, wrapped, NS)
    assert not registry.asked
    other, of_other = WrapKeys((registry.keys[NS],)).wrap(b"t", NS)
    assert node.keys.unwrap(other, of_other, NS) == b"t"


def test_for_another_namespaces_state_it_says_which_pod_and_artifact(registry: Registry) -> None:
    node = Node(registry)
    node.pods = [Asker("team-b", "u1", f"{NS}/llama-0@20261121T000000Z-00000001")]
    node.keys.unwrap("ab" * 8, "cd" * 60, NS)
    assert registry.asked[0].pod_namespace == "team-b"
    assert registry.asked[0].artifact == node.pods[0].artifact
