"""What is written so that objects say what the registry knows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.artifacts.listed import (
    Changes,
    HeldCopy,
    Listed,
    changes,
    key_of,
    object_name,
)
from kybernate.errors import RefusedError

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def one(number: int, namespace: str = "shop", **more: object) -> Listed:
    artifact = f"{namespace}/a@20260131T120000Z-{number:08x}"
    return Listed(artifact, "a", "u1", "", 7, number, ())._replace(**more)


def test_names_are_those_of_kubernetes_and_tell_artifacts_apart() -> None:
    assert object_name("shop/llama-0@20260131T120000Z-00c0ffee") == (
        "llama-0.20260131t120000z-00c0ffee"
    )
    long = [
        f"shop/{'a' * 60}.{'b' * 60}.{'c' * 60}.{last * 60}@20260131T120000Z-00c0ffee"
        for last in "de"
    ]
    names = [object_name(each) for each in long]
    assert len(set(names)) == 2
    for name in names:
        assert NAME.fullmatch(name)
        assert len(name) <= 253
    with pytest.raises(RefusedError, match="is no artifact"):
        object_name("shop/a@1-2")


def test_the_deepest_verified_tier_counts() -> None:
    nvme, store = HeldCopy("nvme", "n1", "verified", 7), HeldCopy("object", "", "pending", 7)
    assert one(1).tier == ""
    assert one(1, copies=(nvme, store)).tier == "nvme"
    assert one(1, copies=(store._replace(state="verified"), nvme)).tier == "object"


def test_what_differs_is_written_and_nothing_else() -> None:
    known = [one(3), one(2), one(1)]
    there = {key_of(each): each for each in known}
    assert changes(known, there, 10, 10) == Changes((), (), ())
    bigger = one(2, size=8)
    gone = {**there, ("shop", "old"): None}
    del gone[key_of(one(3))]
    found = changes([one(3), bigger, one(1)], gone, 10, 10)
    assert found == Changes((one(3),), (bigger,), (("shop", "old"),))


def test_so_many_are_shown_of_a_namespace_the_newest() -> None:
    known = [one(4), one(3), one(2, "dev"), one(1)]
    assert changes(known, {}, 2, 10).make == (one(4), one(3), one(2, "dev"))
    full = {key_of(each): each for each in known[1:]}
    assert changes(known, full, 2, 10) == Changes((one(4),), (), (key_of(one(1)),))


WORLDS = st.dictionaries(st.integers(0, 30), st.integers(0, 3), max_size=20)


@given(WORLDS, WORLDS, st.integers(1, 8), st.integers(1, 5))
def test_rounds_end_with_what_is_known(
    known: dict[int, int], before: dict[int, int], each: int, most: int
) -> None:
    def listed(found: dict[int, int]) -> list[Listed]:
        return [
            one(n, "shop" if n % 2 else "dev", size=found[n]) for n in sorted(found, reverse=True)
        ]

    objects: dict[tuple[str, str], Listed | None] = {key_of(a): a for a in listed(before)}
    for _ in range(100):
        found = changes(listed(known), objects, each, most)
        assert sum(map(len, found)) <= most
        if not any(found):
            break
        for key in found.drop:
            del objects[key]
        objects |= {key_of(a): a for a in (*found.make, *found.change)}
    wanted = listed(known)
    shown = [a for ns in ("shop", "dev") for a in [w for w in wanted if w.namespace == ns][:each]]
    assert objects == {key_of(a): a for a in shown}
