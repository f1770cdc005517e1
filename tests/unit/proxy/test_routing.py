"""Names of models: no namespace gets another's requests, in whatever order seats come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import Limits, Reject, SeatInfo, Serve
from proxy.admission import Admission
from proxy.routing import Away, names, refusal, routes


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


def test_a_refusal_names_no_other_tenants_models_and_says_how_to_name_ones_own():
    status, code, reason = refusal("llama", ["lab/llama", "shop/llama"])
    assert (status, code) == (409, "model_ambiguous")
    assert "NAMESPACE/llama" in reason
    assert "shop" not in reason
    assert "lab" not in reason


def test_a_name_with_a_slash_is_a_full_name_and_nothing_else():
    thief = seat("lab", "shop/llama")
    assert routes([thief, SHOP], "shop/llama", ()) == ["shop/llama"]
    assert routes([thief, SHOP], "lab/shop/llama", ()) == ["lab/shop/llama"]
    assert names([thief, SHOP], ())["lab/shop/llama"] == "lab/shop/llama"
    assert routes([thief], "shop/llama", ()) == [], "not even while the true one is away"
    assert names([thief], ()) == {"lab/shop/llama": "lab/shop/llama"}
    status, code, reason = refusal("org/model", [])
    assert (status, code) == (404, "model_not_found")
    assert "NAMESPACE/org/model" in reason


def test_a_namespace_that_the_settings_put_first_may_have_plain_names_with_a_slash():
    mine, other = seat("shop", "org/m"), seat("lab", "org/m")
    assert routes([mine, other], "org/m", ("shop",)) == ["shop/org/m"]
    assert routes([other], "org/m", ("shop",)) == []
    assert routes([mine], "org/m", ("shop",), [seat("org", "m")]) == ["shop/org/m"]


def test_a_plain_name_stays_taken_for_a_while_after_its_model_left():
    away = Away(keep=60.0)
    away.left(SHOP, 0.0)
    assert routes([LAB], "llama", (), away.seats(59.0)) == ["lab/llama", "shop/llama"]
    assert names([LAB], (), away.seats(59.0)) == {"lab/llama": "lab/llama"}
    assert routes([LAB], "llama", ("shop",), away.seats(59.0)) == []
    assert routes([SHOP], "llama", (), away.seats(59.0)) == ["shop/llama"]
    assert routes([], "llama", (), away.seats(59.0)) == []
    assert routes([LAB], "llama", (), away.seats(60.0)) == ["lab/llama"]


def test_what_left_long_ago_is_forgotten_and_memory_has_a_bound():
    away = Away(keep=60.0)
    for number in range(10_050):
        away.left(seat("lab", f"m{number}"), number / 1000)
    assert len(away.seats(0.0)) == 10_000
    away.left(SHOP, 1000.0)
    assert away.seats(0.0) == [SHOP]


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
        assert "/" not in name or owner in first
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
    assert refused.code == "model_ambiguous"
    served = admission.arrive(2, "shop/llama", 1.0)[0]
    assert isinstance(served, Serve)
    assert served.seat is SHOP


def test_a_namesake_gets_no_request_of_a_model_that_is_away():
    admission = Admission(Limits())
    admission.connected(NodeName("n1"))
    for one in (SHOP, LAB, seat("lab", "shop/llama")):
        admission.seat(one, 0.0)
        admission.grant(one.uid, 1, 0.0)
    admission.gone(SHOP.uid, 1.0)
    for ticket, name, code in (
        (1, "shop/llama", "model_not_found"),
        (2, "llama", "model_ambiguous"),
    ):
        (refused,) = admission.arrive(ticket, name, 2.0)
        assert isinstance(refused, Reject)
        assert refused.code == code
    served = admission.arrive(3, "lab/llama", 2.0)[0]
    assert isinstance(served, Serve)
