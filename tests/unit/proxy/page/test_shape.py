"""What the page shows, and to whom; and what changes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import ANYONE, Client, SeatInfo, SeatView
from proxy.page.history import History
from proxy.page.rates import Rate
from proxy.page.shape import Extra, Known, Lane, Scene, Waiting, changes, page, spans

CLUSTER = Scene("cluster", commands=True)


def seat(uid, state=SeatState.PARKED, **more):
    given = {"tier": "ram", "size": 7, "wake": 1.5} if state is SeatState.PARKED else {}
    info = SeatInfo(
        PodUid(uid), NodeName("n1"), f"s-{uid}", "G0", f"p-{uid}", f"m-{uid}", state,
        namespace="team", **given,
    )  # fmt: skip
    return SeatView(replace(info, **more), True, state is SeatState.ACTIVE, 1, 2)


PAGE = (Path(__file__).parents[4] / "docs/reference/serving/page.md").read_text()


def known(*seats, past=None):
    names = {one.info.route: one.info.model for one in seats}
    return Known(
        9.0,
        seats,
        names,
        {"team/m-a": Waiting(3, 1.23)},
        {"team/m-a": Rate(1.0)},
        past or History(),
    )


def test_a_cluster_shows_a_lane_for_each_group_of_a_node():
    said = page(CLUSTER, known(seat("a"), seat("b", node=NodeName("n2"))), ANYONE)
    assert set(said["lanes"]) == {"n1/G0", "n2/G0"}
    assert said["lanes"]["n1/G0"] == {
        "name": "G0", "node": "n1", "product": "", "memory": 0, "others": 0,
    }  # fmt: skip
    assert said["seats"]["a"]["lanes"] == ["n1/G0"]
    assert said["models"]["team/m-a"] == {
        "name": "m-a", "waiting": 3, "left": 1.2, "rate": 1.0, "failed": 0,
    }  # fmt: skip
    assert (said["acts"], said["commands"], said["logs"]) == ([], True, False)
    assert (said["seats"]["a"]["namespace"], said["seats"]["a"]["pod"]) == ("team", "p-a")


@pytest.mark.parametrize(
    ("title", "of", "but"),
    [
        ("# The page's data\n", lambda said, past: said, {"now", "spans"}),
        ("## A lane\n", lambda said, past: said["lanes"]["n1/G0"], set()),
        ("## A model\n", lambda said, past: said["models"]["team/m-a"], set()),
        ("## A seat\n", lambda said, past: said["seats"]["a"], set()),
        ("## A span\n", lambda said, past: past[0], set()),
    ],
)
def test_the_reference_lists_each_field_and_no_other(title, of, but):
    """`but`: what the stream adds."""
    one, past = seat("a"), History()
    past.seat(seat("b", SeatState.ACTIVE).info, 1.0)
    past.gone(PodUid("b"), 2.0)
    rates = {"team/m-a": Rate(1.0, 0, 0.1, 0.2)}
    said = page(CLUSTER, replace(known(one), rates=rates), ANYONE)
    rows = re.findall(
        r"^\| (`.+?) \|", PAGE.partition(title)[2].partition("\n## ")[0], re.MULTILINE
    )
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == of(said, spans(CLUSTER, past.spans(), ANYONE)).keys() | but


def test_who_waits_for_longer_than_expected_is_promised_nothing():
    late = replace(known(seat("a")), waiting={"team/m-a": Waiting(1, 0.0)})
    assert "left" not in page(CLUSTER, late, ANYONE)["models"]["team/m-a"]


def test_a_seat_says_where_its_state_is_and_when_it_would_answer():
    parked, active, new = (
        page(CLUSTER, known(seat("a", state)), ANYONE)["seats"]["a"]
        for state in (SeatState.PARKED, SeatState.ACTIVE, SeatState.WAITING)
    )
    assert (parked["state"], parked["tier"], parked["bytes"]) == ("parked", "ram", 7)
    assert (parked["wake"], parked["held"]) == (1.5, False)
    assert (active["wake"], active["held"]) == (0.0, True)
    assert "wake" not in new


def test_a_seat_says_whether_it_takes_turns():
    said = page(CLUSTER, known(seat("a", weight=4.0), seat("b")), ANYONE)["seats"]
    assert (said["a"]["turn"], said["a"]["weight"]) == ("always", 4.0)
    assert (said["b"]["turn"], said["b"]["weight"]) == ("on-request", 0.0)


def test_a_client_sees_its_namespaces_and_nothing_of_others():
    past = History()
    for uid, namespace in (("a", "team"), ("b", "secret")):
        one = seat(uid, SeatState.ACTIVE, namespace=namespace).info
        past.seat(one, 1.0)
        past.gone(one.uid, 2.0)
    client = Client("key", frozenset({"team"}))
    every = known(seat("a"), seat("b", namespace="secret", node=NodeName("hidden")), past=past)
    mine = replace(every, names={"team/m-a": "m-a"})
    text = orjson.dumps([page(CLUSTER, mine, client), spans(CLUSTER, past.spans(), client)])
    assert b"m-a" in text
    for word in (b"secret", b"m-b", b"hidden", b"s-b"):
        assert word not in text


def test_a_box_tells_its_gpus():
    lanes = (Lane("GPU-x", "GPU 0", "", "H100", 80, 5),)
    extras = {"m-a": Extra(("GPU-x",), 11, None, pinned=True)}
    box = Scene("this box", ("park",), logs=True, lanes=lanes, extras=extras)
    said = page(box, known(seat("a", namespace="")), ANYONE)
    assert said["lanes"]["GPU-x"]["others"] == 5
    one = said["seats"]["a"]
    assert (one["lanes"], one["bytes"], one["pinned"]) == (["GPU-x"], 11, True)
    assert "wake" not in one


def test_a_seat_that_is_called_says_who_is_in_its_gpus():
    lanes = (Lane("x", "GPU 0", ""), Lane("y", "GPU 1", ""))
    extras = {
        "m-a": Extra(("x", "y"), 0, None, pinned=False),
        "m-b": Extra(("x",), 0, None, pinned=False),
        "m-c": Extra(("y",), 0, None, pinned=True),
    }
    box = Scene("this box", lanes=lanes, extras=extras)
    seats = [seat("a", namespace="", reason="parked")]
    seats += [seat(uid, SeatState.ACTIVE, namespace="", reason="awake") for uid in "bc"]
    said = page(box, known(*seats), ANYONE)["seats"]
    assert said["a"]["why"] == ("waits for its GPUs: m-b is active with 1 in flight, m-c is pinned")
    assert said["b"]["why"] == "awake"
    idle = replace(seats[0], waiting=0)
    assert page(box, known(idle, *seats[1:]), ANYONE)["seats"]["a"]["why"] == "parked"


def test_who_is_in_its_gpus_is_not_told_to_other_tenants():
    others = seat("b", SeatState.ACTIVE, namespace="secret")
    client = Client("key", frozenset({"team"}))
    said = page(CLUSTER, known(seat("a", reason="parked"), others), client)["seats"]
    assert said["a"]["why"] == "parked"


_JSON = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
)
_OBJECTS = st.dictionaries(st.sampled_from("abcd"), _JSON, max_size=4)


def merged(target, patch):
    """RFC 7396, as it is written there."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


@given(_OBJECTS, _OBJECTS)
def test_old_and_changes_make_new(old, new):
    assert merged(old, changes(old, new)) == new
    assert changes(old, old) == {}
