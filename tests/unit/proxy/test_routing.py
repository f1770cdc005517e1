"""Names of models: no namespace gets another's requests, in whatever order seats come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import Limits, Reject, SeatInfo, Serve
from proxy.admission import Admission
from proxy.routing import names, refusal, routes


def seat(namespace: str, model: str, uid: str = "") -> SeatInfo:
    return SeatInfo(
        uid=PodUid(uid or f"{namespace}-{model}"),
        node=NodeName("n1"),
        name="G0-seat-1",
        group="G0",
        pod=f"{namespace}/p",
        model=model,
        state=SeatState.ACTIVE,
        address="10.0.0.1:80",
        namespace=namespace,
    )


SHOP, LAB = seat("shop", "llama"), seat("lab", "llama")


def test_a_plain_name_is_its_only_namespaces():
    assert routes([SHOP], "llama", ()) == ["shop/llama"]
    assert routes([SHOP], "shop/llama", ()) == ["shop/llama"]
    assert routes([SHOP], "lab/llama", ()) == []


def test_a_name_of_two_namespaces_is_neithers_unless_the_settings_say_so():
    assert routes([SHOP, LAB], "llama", ()) == ["lab/llama", "shop/llama"]
    assert routes([LAB, SHOP], "llama", ("ops", "shop", "lab")) == ["shop/llama"]
    assert names([SHOP, LAB], ()) == {"lab/llama": "lab/llama", "shop/llama": "shop/llama"}
    assert names([SHOP, LAB], ("shop",)) == {"lab/llama": "lab/llama", "shop/llama": "llama"}
    assert refusal("llama", ["lab/llama", "shop/llama"], ())[:2] == (409, "model_ambiguous")


def test_a_plain_name_with_a_slash_does_not_take_a_full_name_away():
    thief = seat("lab", "shop/llama")
    assert routes([thief, SHOP], "shop/llama", ()) == ["shop/llama"]
    assert routes([thief, SHOP], "lab/shop/llama", ()) == ["lab/shop/llama"]
    assert names([thief, SHOP], ())["lab/shop/llama"] == "lab/shop/llama"


@given(
    st.lists(
        st.tuples(st.sampled_from(["shop", "lab", "ops"]), st.sampled_from(["a", "b", "shop/a"])),
        min_size=1,
        max_size=6,
        unique=True,
    ),
    st.sampled_from(["a", "b", "shop/a", "lab/a", "ops/b", "lab/shop/a"]),
    st.lists(st.sampled_from(["shop", "lab"]), max_size=2, unique=True),
    st.randoms(use_true_random=False),
)
def test_the_answer_does_not_depend_on_the_order_and_never_steals(claims, name, first, random):
    seats = [seat(*claim) for claim in claims]
    found = routes(seats, name, first)
    random.shuffle(seats)
    assert routes(seats, name, first) == found
    full = {one.route for one in seats}
    if name in full:
        assert found == [name]
    if len(found) == 1 and found[0] != name:
        claimants = {one.namespace for one in seats if one.model == name}
        owner = found[0].partition("/")[0]
        assert claimants == {owner} or owner in first
    for route, shown in names(seats, first).items():
        assert routes(seats, shown, first) == [route]


def test_a_newcomer_of_another_namespace_gets_no_request_of_the_first():
    admission = Admission(Limits())
    admission.connected(NodeName("n1"))
    for one in (SHOP, LAB):
        admission.seat(one, 0.0)
        admission.grant(one.uid, 1, 0.0)
    (refused,) = admission.arrive(1, "llama", 1.0)
    assert isinstance(refused, Reject)
    assert "lab/llama or shop/llama" in refused.reason
    served = admission.arrive(2, "shop/llama", 1.0)[0]
    assert isinstance(served, Serve)
    assert served.seat is SHOP
