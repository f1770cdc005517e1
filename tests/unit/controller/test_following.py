"""Who waits for the ends of operations, and how many do."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from controller.checkpoints.following import _MOST, _OF_NODE, Following

_PATIENCE = 30.0


class Agents:
    """Each call returns once `over` is set, with `ended`."""

    def __init__(self):
        self.over, self.ended = threading.Event(), True
        self.asked, self.returned = Counter(), threading.Semaphore(0)

    def ends(self, node, name, _within):
        self.asked[node, name] += 1
        self.over.wait(_PATIENCE)
        return self.ended


@pytest.fixture
def agents():
    found = Agents()
    yield found
    found.over.set()


def settled(following):
    """Nobody waits any more."""
    while following._nodes:
        threading.Event().wait(0.001)


def test_one_that_has_ended_is_told_of_and_may_be_followed_again(agents):
    told, following = threading.Event(), Following(agents)
    following.follow("n1", "a", told.set)
    following.follow("n1", "a", told.set)
    agents.over.set()
    assert told.wait(_PATIENCE)
    settled(following)
    assert agents.asked == {("n1", "a"): 1}
    following.follow("n1", "a", told.set)
    settled(following)
    assert agents.asked == {("n1", "a"): 2}


def test_nothing_is_said_of_one_of_which_nobody_heard_an_end(agents):
    told, following = [], Following(agents)
    agents.ended = False
    following.follow("n1", "a", lambda: told.append("a"))
    agents.over.set()
    settled(following)
    assert told == []


def test_no_more_are_followed_than_there_is_room_for(agents):
    """An agent takes so many streams of one caller; the others are looked at now and then."""
    following = Following(agents)
    for number in range(3 * _MOST):
        following.follow(f"n{number % 2}", f"a{number}", lambda: None)
    assert Counter(following._nodes.values()) == {"n0": _OF_NODE, "n1": _OF_NODE}
    for number in range(3 * _MOST):
        following.follow(f"m{number}", f"b{number}", lambda: None)
    assert len(following._nodes) == _MOST
