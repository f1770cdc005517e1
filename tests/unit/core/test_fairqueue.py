"""The fair queue: whatever comes and goes, clients take turns and nobody starves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.fairqueue import FairQueue, Place

CLIENTS = ("a", "b", "c", "d")
COMING = st.lists(st.tuples(st.sampled_from(CLIENTS), st.integers(-2, 2)), min_size=1, max_size=60)


def filled(coming):
    queue = FairQueue()
    for ticket, (client, priority) in enumerate(coming):
        queue.add(Place(ticket, client, float(ticket), ticket + 10.0, priority))
    return queue


@given(COMING)
def test_every_client_that_waits_is_served_once_before_any_is_served_twice(coming):
    queue = filled(coming)
    left = Counter(client for client, _ in coming)
    since = dict.fromkeys(left, 0)
    while queue:
        served = queue.take().client
        left[served] -= 1
        for client in since:
            since[client] = 0 if client == served or not left[client] else since[client] + 1
        assert max(since.values()) < len(since), "a client waits while others come twice"
    assert not +left


@given(COMING)
def test_of_one_clients_requests_priority_and_then_age_decide(coming):
    queue, order = filled(coming), {}
    while queue:
        place = queue.take()
        order.setdefault(place.client, []).append((-place.priority, place.ticket))
    assert all(mine == sorted(mine) for mine in order.values())


@given(COMING, COMING)
def test_a_flood_delays_a_client_by_its_number_and_not_by_its_size(before, flood):
    """However many others wait, who comes is served after at most one of each of them."""
    queue = filled([(client, priority) for client, priority in before if client != "d"])
    for number, (_, priority) in enumerate(flood):
        queue.add(Place(1000 + number, "a", 1000.0, 2000.0, priority))
    queue.add(Place(1, "d", 1.0, 9.0))
    served = [queue.take().client for _ in range(len(queue))]
    assert served.index("d") <= len(CLIENTS) - 1


@given(COMING, st.sampled_from(CLIENTS))
def test_where_there_is_no_room_it_is_at_the_expense_of_who_has_the_most(coming, client):
    queue = filled(coming)
    counts = Counter(one for one, _ in coming)
    goes = queue.goes_for(client)
    most = max(counts.values())
    if counts[client] + 1 >= most:
        assert goes is None, "the newcomer's client would have the most"
        return
    assert goes is not None
    assert counts[goes.client] == most
    mine = [place for place in queue if place.client == goes.client]
    assert goes.priority == min(place.priority for place in mine)
    assert all(p.ticket <= goes.ticket for p in mine if p.priority == goes.priority)


@given(COMING, st.data())
def test_what_is_removed_is_gone_and_the_rest_is_served(coming, data):
    queue = filled(coming)
    out = data.draw(st.sets(st.sampled_from(range(len(coming)))))
    for ticket in sorted(out):
        assert queue.remove(ticket, coming[ticket][0]).ticket == ticket
    left = set(range(len(coming))) - out
    assert len(queue) == len(left)
    assert (queue.oldest and queue.oldest.came) == (float(min(left)) if left else None)
    assert {place.ticket for place in queue.late(20.0)} == {t for t in left if t <= 10}
    assert {queue.take().ticket for _ in range(len(queue))} == left


def test_nobody_can_be_taken_from_an_empty_queue():
    with pytest.raises(LookupError):
        FairQueue().take()
