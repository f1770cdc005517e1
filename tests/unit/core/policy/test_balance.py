"""Which pod leaves a busy group; and, over many nodes, that none goes to and fro."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.policy.balance import (
    BalanceReason,
    Group,
    Load,
    Pod,
    Rule,
    Scene,
    Tried,
    Use,
    balance,
)

NOW = 1_800_000_000.0
RULE = Rule(0.5, 1800.0)
PAIR = "kyb.ai/gpu-2x-seat"
G01 = Group("G01", PAIR, frozenset("01"), 3)
G23 = Group("G23", PAIR, frozenset("23"), 3)
G0 = Group("G0", "kyb.ai/gpu-1x-seat", frozenset("0"), 4)
G12 = Group("G12", PAIR, frozenset("12"), 3)


def pod(uid, node="n1"):
    return Pod(uid, f"shop/{uid}", node)


def scene(*uses, groups=(G01, G23), pods=None, tried=()):
    names = pods if pods is not None else [one.uid for one in uses]
    load = Load(groups, tuple(uses))
    return Scene("p1", [pod(one) for one in names], {"n1": load}, tried)


ABC = (Use("a", "G01", 0.3, 5), Use("b", "G01", 0.2, 3), Use("c", "G01", 0.2, 1))


def test_the_seed_a_b_and_c_are_on_g01_and_g23_is_idle():
    found = balance(RULE, scene(*ABC, Use("d", "G23", 0.0)), NOW)
    assert (found.reason, found.move.pod.uid) == (BalanceReason.MOVING, "a")
    assert (found.move.source, found.move.target) == ("G01", "G23")
    assert (found.move.before, found.move.after) == pytest.approx((0.7, 0.4))
    assert "group G01 of n1 is busy 70%" in found.message


def test_of_two_that_better_it_alike_the_smaller_moves():
    alike = Use("x", "G01", 0.3, 9), Use("y", "G01", 0.3, 2)
    assert balance(RULE, scene(*alike), NOW).move.pod.uid == "y"


@pytest.mark.parametrize(
    ("uses", "groups"),
    [
        ((Use("a", "G01", 0.9),), (G01, G23)),
        (ABC, (G01,)),
        (ABC, (G01, G0)),
        (ABC, (G01, G12)),
        (ABC, (G01, G23._replace(seats=0))),
        ((*ABC, Use("d", "G23", 0.6)), (G01, G23)),
        ((Use("a", "G01", 0.7), Use("b", "G01", 0.05)), (G01, G23)),
    ],
    ids=["alone", "no group", "smaller", "overlaps", "no seat", "busy, too", "within the margin"],
)
def test_nobody_moves_where_it_would_be_no_better(uses, groups):
    found = balance(RULE, scene(*uses, groups=groups), NOW)
    assert (found.reason, found.move) == (BalanceReason.NO_BETTER_PLACE, None)


def test_nobody_moves_from_what_is_not_busy_nor_who_may_not():
    assert balance(Rule(0.71, 1.0), scene(*ABC), NOW).reason is BalanceReason.EVEN
    assert balance(RULE, scene(*ABC, pods=["c"]), NOW).move.pod.uid == "c"
    assert balance(RULE, scene(*ABC, pods=[]), NOW).reason is BalanceReason.EVEN


def test_seats_of_one_gpu_each_load_the_pair_that_they_are_in():
    uses = Use("one", "G0", 0.5), Use("a", "G01", 0.3)
    found = balance(RULE, scene(*uses, groups=(G0, G01, G23)), NOW)
    assert (found.move.pod.uid, found.move.before) == ("a", pytest.approx(0.8))


def test_two_active_slots_halve_what_a_seat_loads_a_gpu_with():
    two = G01._replace(slots=2)
    assert balance(RULE, scene(*ABC, groups=(two, G23)), NOW).reason is BalanceReason.EVEN


def test_one_move_at_a_time_and_one_in_an_interval():
    under_way = Tried("shop/a", "p1", "n1", 0.0)
    assert balance(RULE, scene(*ABC, tried=[under_way]), NOW).move is None
    others = under_way._replace(policy="p2")
    found = balance(RULE, scene(*ABC, tried=[others]), NOW)
    assert (found.reason, found.move) == (BalanceReason.SETTLING, None)
    for policy in ("p1", "p2"):
        ended = Tried("shop/a", policy, "n1", NOW - 1000)
        found = balance(RULE, scene(*ABC, tried=[ended]), NOW)
        assert (found.reason, found.move, found.again) == (BalanceReason.SETTLING, None, 800.0)
        assert balance(RULE, scene(*ABC, tried=[ended]), NOW + 800).move is not None
    elsewhere = Tried("shop/z", "p2", "n2", NOW)
    assert balance(RULE, scene(*ABC, tried=[elsewhere]), NOW).move is not None


def test_whose_move_failed_stays_and_another_one_goes():
    failed = Tried("shop/a", "p1", "n1", NOW - 5000, failed=True)
    assert balance(RULE, scene(*ABC, tried=[failed]), NOW).move.pod.uid == "c"


def test_what_ended_before_it_began_leaves_the_node_to_others():
    unbegun = Tried("shop/a", "p2", "n1", NOW - 10, failed=True, began=False)
    assert balance(RULE, scene(*ABC, tried=[unbegun]), NOW).move.pod.uid == "a"
    assert balance(RULE, scene(*ABC, tried=[unbegun._replace(at=0.0)]), NOW).move is None
    own = unbegun._replace(policy="p1")
    assert balance(RULE, scene(*ABC, tried=[own]), NOW).reason is BalanceReason.SETTLING
    later = balance(RULE, scene(*ABC, tried=[own._replace(at=NOW - 1800)]), NOW)
    assert later.move.pod.uid == "c", "its plan was refused; another one is asked for"


class Counted(tuple):
    """Rows that count how often they are looked through."""

    looks = 0

    def __iter__(self):
        Counted.looks += 1
        return super().__iter__()


def test_a_nodes_load_is_looked_through_once_for_all_its_pods():
    looks = {}
    for pods in (10, 200):
        uses = tuple(Use(f"u{n}", "G01", 0.9) for n in range(pods))
        Counted.looks = 0
        balance(RULE, scene(*uses, groups=Counted((G01, G23))), NOW)
        looks[pods] = Counted.looks
    assert looks[10] == looks[200]


def served(demand, places):
    """What each seat serves: all that it is asked, or its part of a group that is asked too
    much."""
    found = {}
    for name in set(places.values()):
        here = [uid for uid in places if places[uid] == name]
        most = max(1.0, sum(demand[uid] for uid in here))
        found |= {uid: demand[uid] / most for uid in here}
    return found


demands = st.dictionaries(
    st.integers(0, 9).map(lambda one: f"u{one}"), st.floats(0, 1.5), min_size=2, max_size=6
)


@given(demands, st.data(), st.sampled_from([0.02, 0.3, 0.5, 0.9]))
def test_under_the_same_requests_it_comes_to_rest_and_no_pod_goes_to_and_fro(demand, data, above):
    groups = tuple(Group(f"G{n}", PAIR, frozenset({f"{n}a", f"{n}b"}), 4) for n in range(3))
    places = {uid: data.draw(st.sampled_from(groups)).name for uid in demand}
    moves = []
    rule, now, tried = Rule(above, 1800.0), NOW, []
    for _ in range(40):
        busy = served(demand, places)
        uses = [Use(uid, name, busy[uid]) for uid, name in places.items()]
        found = balance(rule, scene(*uses, groups=groups, tried=tried), now)
        if found.move is None:
            break
        uid, target = found.move.pod.uid, found.move.target
        assert sum(name == target for name in places.values()) < 4
        assert target != places[uid]
        before = [at for at, (who, source) in enumerate(moves) if (who, source) == (uid, target)]
        # It returns only where what others have moved meanwhile has made room.
        assert not before or any(who != uid for who, _ in moves[before[-1] + 1 :]), "to and fro"
        moves.append((uid, places[uid]))
        places[uid] = target
        tried, now = [Tried(f"shop/{uid}", "p1", "n1", now)], now + 1800.0
    else:
        pytest.fail(f"it does not come to rest: {moves}")


@given(st.lists(st.integers(0, 4000), max_size=60), st.integers(1, 3000))
def test_the_budget_is_kept_whenever_it_is_looked_at(pauses, every):
    rule, now, tried, moves = Rule(0.5, every), NOW, [], []
    for pause in pauses:
        now += pause
        found = balance(rule, scene(*ABC, tried=tried), now)
        if found.move is not None:
            moves.append(now)
            tried.append(Tried(f"shop/x{len(moves)}", "p1", "n1", now))
    assert all(after - before >= every for before, after in itertools.pairwise(moves))
