"""Whatever order of events hypothesis finds for the proxy's decisions."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import NamedTuple

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import (
    Abort,
    Client,
    Close,
    Drained,
    Limits,
    Reject,
    Serve,
    Wish,
)
from proxy.admission import Admission
from tests.unit.proxy.test_admission import N1, A, B, of, seat

UIDS = st.sampled_from([PodUid(c) for c in "abcd"])
MODELS = {PodUid("a"): "m", PodUid("b"): "m", PodUid("c"): "n", PodUid("d"): "n"}
NODES = {PodUid("a"): N1, PodUid("b"): NodeName("n2"), PodUid("c"): N1, PodUid("d"): N1}
STATES = st.sampled_from(list(SeatState))


class Held(NamedTuple):
    ticket: int
    model: str
    client: str
    priority: int
    until: float


class AnyOrder(RuleBasedStateMachine):
    """Believes nothing that Admission says about itself: it keeps its own book."""

    at_seat = 0
    registry = False

    def __init__(self):
        super().__init__()
        self.limits = Limits(
            wait=10.0,
            waiting=4,
            lease_break=2.0,
            bodies=50,
            client_bodies=30,
            client_wakes=9,
            at_seat=self.at_seat,
            registry=self.registry,
        )
        self.admission = Admission(self.limits)
        self.now = 0.0
        self.ticket = 0
        self.lease: dict[PodUid, int] = {}
        self.back: dict[PodUid, int] = {}
        """What went back unasked, until it is granted again."""
        self.resigned = False
        self.generation = 0
        self.held: list[Held] = []
        self.flying: dict[int, PodUid] = {}
        self.bytes: dict[int, int] = {}
        self.known: set[PodUid] = set()
        self.up = {N1: True, NodeName("n2"): True}

    @initialize(granted=st.sets(UIDS))
    def agents_say_what_there_is(self, granted):
        for uid, node in NODES.items():
            self.admission.takes_back(node, yes=True)
            self.agent_names(uid, SeatState.ACTIVE, "10.0.0.1:80")
        self.agent_grants(granted)

    def take(self, actions):
        for action in actions:
            match action:
                case Serve(ticket, info, generation, _):
                    assert not self.held_back(info.uid), "its place may be taken"
                    assert self.lease.get(info.uid) == generation, "served without a lease"
                    assert info.uid not in self.back, "served under a lease that went back"
                    assert self.up[info.node]
                    assert ticket not in self.flying
                    model = MODELS[info.uid]
                    mine = next((one for one in self.held if one.ticket == ticket), None)
                    if mine is not None:
                        others = [one for one in self.held if one[1:3] == (model, mine.client)]
                        first = max(others, key=lambda one: one.priority)
                        assert first is mine, "not by priority, or not in order of arrival"
                        self.held.remove(mine)
                    self.flying[ticket] = info.uid
                    there = sum(1 for uid in self.flying.values() if uid == info.uid)
                    assert not 0 < self.at_seat < there, "more than a seat takes at once"
                case Reject(ticket):
                    self.drop(ticket)
                case Drained(_, uid, _):
                    assert uid not in self.flying.values(), "drained with requests in flight"
                    assert uid not in self.lease
                case Abort(ticket, _):
                    assert ticket in self.flying
                case Close(uid) if uid in self.lease:
                    assert uid not in self.flying.values(), "given back with requests in flight"
                    self.back[uid] = self.lease[uid]

    def grants(self, uid, generation):
        self.back.pop(uid, None)
        if not self.resigned:
            self.lease[uid] = generation
        actions = self.admission.grant(uid, generation, self.now)
        idle = uid not in self.flying.values()
        if self.resigned:
            assert of(actions, Drained) == [Drained(NODES[uid], uid, generation)] * idle
        self.take(actions)

    def resigns(self):
        """The proxy ends: from now on it wants no lease, and serves nobody."""
        self.resigned = True
        idle = self.lease.keys() - set(self.flying.values())
        due = {Drained(NODES[uid], uid, self.lease[uid]) for uid in idle}
        self.lease.clear()
        actions = self.admission.resign()
        assert due <= set(of(actions, Drained)), "its agent would wait for that"
        self.take(actions)

    def ends(self, uid):
        self.back.pop(uid, None)
        return self.lease.pop(uid, None)

    @rule(uid=UIDS, state=STATES, address=st.sampled_from(["", "10.0.0.1:80"]))
    def agent_names_a_seat(self, uid, state, address):
        self.agent_names(uid, state, address)

    def agent_names(self, uid, state, address):
        node = NODES[uid]
        if not self.up[node]:
            return
        self.known.add(uid)
        info = replace(
            seat(uid, model=MODELS[uid], node=node, state=state),
            address=address,
            predecessor=self.predecessor(uid),
        )
        self.take(self.admission.seat(info, self.now))

    def predecessor(self, uid):
        return PodUid("")

    def held_back(self, uid):
        return False

    @rule(uids=st.sets(UIDS, min_size=1))
    def agent_grants(self, uids):
        for uid in sorted(uids):
            if self.up[NODES[uid]] and uid in self.known:
                self.generation += 1
                self.grants(uid, self.generation)

    @rule(uid=UIDS)
    def agent_takes_a_drain_back(self, uid):
        if uid in self.lease:
            self.grants(uid, self.lease[uid])

    @rule(uid=UIDS)
    def agent_drains(self, uid):
        if generation := self.lease.pop(uid, None):
            actions = self.admission.drain(NODES[uid], uid, generation, self.now)
            self.take(actions)
            idle = uid not in self.flying.values()
            assert of(actions, Drained) == [Drained(NODES[uid], uid, generation)] * idle

    @rule(uid=UIDS, order=st.sampled_from(["drain", "revoke"]), older=st.integers(1, 3))
    def an_order_for_another_lease_comes(self, uid, order, older):
        if uid in self.lease:
            node = (NODES[uid],) if order == "drain" else ()
            other = self.lease[uid] - older
            assert getattr(self.admission, order)(*node, uid, other, self.now) == []

    @rule(node=st.sampled_from([N1, NodeName("n2")]), again=st.booleans())
    def leases_go_back_with_a_demand(self, node, again):
        for uid, generation in self.admission.given_back(node):
            assert uid not in self.flying.values(), "given back with requests in flight"
            if self.lease.get(uid) != generation:
                continue
            assert self.back[uid] == generation, "granted again since"
            del self.lease[uid]
            if again:
                self.grants(uid, generation)

    @rule(uid=UIDS)
    def agent_revokes(self, uid):
        if generation := self.ends(uid):
            actions = self.admission.revoke(uid, generation, self.now)
            flying = {t for t, u in self.flying.items() if u == uid}
            assert {a.ticket for a in of(actions, Abort)} == flying
            self.take(actions)

    @rule(uid=UIDS)
    def agent_drops_a_seat(self, uid):
        if self.up[NODES[uid]]:
            self.known.discard(uid)
            self.ends(uid)
            self.take(self.admission.gone(uid, self.now))

    @rule(node=st.sampled_from([N1, NodeName("n2")]), takes_back=st.booleans())
    def stream_breaks_or_returns(self, node, takes_back):
        self.up[node] = not self.up[node]
        for uid in [uid for uid in NODES if NODES[uid] == node]:
            self.ends(uid)
        if self.up[node]:
            self.take(self.admission.connected(node))
            self.admission.takes_back(node, yes=takes_back)
        else:
            self.take(self.admission.disconnected(node, self.now))

    def drop(self, ticket):
        self.held = [one for one in self.held if one.ticket != ticket]

    @rule(
        model=st.sampled_from("mmmnnnx"),
        size=st.integers(1, 12),
        client=st.sampled_from([Client("1"), Client("2")]),
        patience=st.sampled_from([None, None, 0.0, 2.0, 20.0]),
        priority=st.sampled_from([0, 0, 1, -1]),
    )
    def client_asks(self, model, size, client, patience, priority):
        self.ticket += 1
        if self.admission.receive(self.ticket, size, client):
            return
        self.bytes[self.ticket] = size
        wish = Wish(patience, priority)
        actions = self.admission.arrive(self.ticket, model, self.now, client, wish)
        if not isinstance(actions[0], Serve | Reject):
            until = self.now + min(self.limits.wait, 99.0 if patience is None else patience)
            self.held.append(Held(self.ticket, model, client.name, priority, until))
        self.take(actions)

    def tickets(self):
        return [*self.flying, *(one.ticket for one in self.held)] or [0]

    @rule(data=st.data(), answered=st.booleans())
    def request_ends_or_client_leaves(self, data, answered):
        self.is_over(data.draw(st.sampled_from(self.tickets())), answered=answered)

    def is_over(self, ticket, *, answered):
        self.flying.pop(ticket, None)
        self.drop(ticket)
        self.bytes.pop(ticket, None)
        self.admission.release(ticket)
        self.take(self.admission.leave(ticket, self.now, answered=answered))

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.admission.tick(self.now))
        assert all(one.until > self.now for one in self.held), "waits longer than it may"

    @rule(data=st.data())
    def body_is_no_more_needed(self, data):
        if self.bytes:
            ticket = data.draw(st.sampled_from(sorted(self.bytes)))
            del self.bytes[ticket]
            self.admission.release(ticket)

    @invariant()
    def bodies_stay_within_their_budget(self):
        assert self.admission.body_bytes == sum(self.bytes.values()) <= self.limits.bodies

    @invariant()
    def demand_is_what_clients_want(self):
        waiting = {m: sum(1 for one in self.held if one.model == m) for m in "mn"}
        assert {m: n for m, n in waiting.items() if n} == self.admission.waiting()
        reported = dict.fromkeys("mn", 0)
        for view in self.admission.seats():
            reported[view.info.model] += view.waiting
            flying = sum(1 for uid in self.flying.values() if uid == view.info.uid)
            assert view.in_flight == flying
            assert view.granted <= (view.info.uid in self.lease.keys() - self.back.keys())
        for model, number in waiting.items():
            assert reported[model] in (0, number), "one seat at a time carries the demand"
            assert number <= self.limits.waiting

    @invariant()
    def nobody_waits_for_a_seat_that_is_open(self):
        waiting = self.admission.waiting()
        for view in self.admission.seats():
            assert not (view.granted and view.waiting)
            room = not self.at_seat or view.in_flight < self.at_seat
            free = view.granted and room and not self.held_back(view.info.uid)
            assert not (free and waiting.get(view.info.model))


class WithALimit(AnyOrder):
    """The same where a seat takes two requests at once."""

    at_seat = 2


PLACES = {B: A, PodUid("d"): PodUid("c"), PodUid("c"): PodUid("d")}
"""Whose place each may say that it has taken."""


class WithARegistry(AnyOrder):
    """The same where agents say whose place is taken, truly or not, and a registry is asked."""

    registry = True

    def __init__(self):
        super().__init__()
        self.words: dict[PodUid, bool | None] = {}
        """What the registry said of those who say that they have taken another's place."""
        self.denied: set[NodeName] = set()

    def predecessor(self, uid):
        return PLACES[uid] if uid in self.words else PodUid("")

    def words_on(self, uid):
        here = self.admission.knows
        words = self.words.items()
        return [(one, word) for one, word in words if here(one) and PLACES[one] == uid]

    def held_back(self, uid):
        here = ((NODES[one], word) for one, word in self.words_on(uid))
        return any(word or (word is None and node not in self.denied) for node, word in here)

    @rule(uid=st.sampled_from(sorted(PLACES)))
    def agent_says_that_a_place_is_taken(self, uid):
        if self.up[NODES[uid]] and uid not in self.words and self.admission.knows(uid):
            self.words[uid] = None
            self.agent_names(uid, SeatState.ACTIVE, "10.0.0.1:80")

    @rule(uid=st.sampled_from(sorted(PLACES)), confirmed=st.booleans())
    def registry_says_whether_it_is(self, uid, confirmed):
        # Of two that say it of each other at most one has it.
        other = PLACES[uid]
        if uid not in self.words or (confirmed and self.words.get(other)):
            return
        if self.admission.knows(uid):
            self.words[uid] = confirmed
            if confirmed:
                self.known.discard(other)
                self.ends(other)
            else:
                self.denied.add(NODES[uid])
            self.take(self.admission.verified(uid, other, self.now, confirmed=confirmed))

    @invariant()
    def what_is_replaced_is_gone(self):
        for uid in {PLACES[uid] for uid in self.words}:
            if any(word for _, word in self.words_on(uid)):
                assert not self.admission.knows(uid)
        for uid in NODES:
            if not self.admission.knows(uid):
                self.words.pop(uid, None)
                self.known.discard(uid)
                self.ends(uid)


def walk(dice, one, steps):
    """Do so many of its rules in a random order, most often what concerns leases."""
    uid, node = lambda: dice.choice(list(NODES)), lambda: dice.choice([N1, NodeName("n2")])
    awake = [SeatState.ACTIVE, SeatState.ACTIVE, SeatState.DRAINING, SeatState.PARKED]
    client = lambda: dice.choice([Client("1"), Client("2")])  # noqa: E731
    rules = {
        lambda: one.client_asks(dice.choice("mn"), 1, client(), dice.choice([None, 2.0]), 0): 9,
        lambda: one.is_over(dice.choice(one.tickets()), answered=True): 7,
        lambda: one.agent_grants([uid()]): 4,
        lambda: one.leases_go_back_with_a_demand(node(), dice.random() < 0.5): 4,
        lambda: one.agent_drains(uid()): 3,
        lambda: one.agent_takes_a_drain_back(uid()): 2,
        lambda: one.agent_names_a_seat(uid(), dice.choice(awake), "10.0.0.1:80"): 2,
        lambda: one.an_order_for_another_lease_comes(uid(), "drain", 1): 1,
        lambda: one.agent_revokes(uid()): 1,
        lambda: one.agent_drops_a_seat(uid()): 1,
        lambda: one.stream_breaks_or_returns(node(), takes_back=True): 1,
        lambda: one.time_passes(dice.choice([0.5, 3.0])): 1,
    }
    for act in dice.choices(list(rules), list(rules.values()), k=steps):
        act()
        one.demand_is_what_clients_want()
        one.nobody_waits_for_a_seat_that_is_open()


def requests_go_only_to_granted_seats(machine):
    """Hypothesis finds what is rare, but leaves most of its requests without a lease."""
    for seed in range(200):
        dice, one = random.Random(seed), machine()
        one.agents_say_what_there_is(list(NODES))
        walk(dice, one, 60)
        one.resigns()
        walk(dice, one, 20)


def often(machine, examples=150):
    """The machine's test, with so many examples."""
    machine.TestCase.settings = hypothesis_settings(
        max_examples=examples, stateful_step_count=40, deadline=None
    )
    return machine.TestCase
