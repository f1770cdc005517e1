"""Things by namespace and name, compared with one plain map of both."""

from __future__ import annotations

import random

import pytest

from kybernate.lib.keyed import Keyed


@pytest.mark.parametrize("seed", range(20))
def test_it_says_what_was_put_last_and_nothing_else(seed):
    chance, keyed, plain = random.Random(seed), Keyed(), {}
    for number in range(200):
        key = chance.choice("ab"), chance.choice("xyz")
        thing = chance.choice((None, number))
        assert keyed.put(*key, thing) == plain.pop(key, None)
        if thing is not None:
            plain[key] = thing
        for space in "ab":
            there = [one for (namespace, _), one in plain.items() if namespace == space]
            assert keyed.of(space) == tuple(there)
            assert set(keyed.keys(space)) == {one for one in plain if one[0] == space}
        assert sorted(keyed.all()) == sorted(plain.values())
        assert set(keyed.keys()) == set(plain)
        assert keyed.get(*key) == plain.get(key)


def test_what_was_changed_meanwhile_is_not_replaced():
    keyed, old, new = Keyed(), object(), object()
    keyed.put("a", "x", old)
    keyed.put("a", "y", object())
    assert keyed.replace("a", "x", old, new)
    assert keyed.of("a")[0] is new
    assert not keyed.replace("a", "x", old, object())
    assert not keyed.replace("b", "x", old, new)
    assert keyed.get("b", "x") is None
