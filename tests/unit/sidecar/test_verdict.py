from __future__ import annotations

import pytest

from kybernate.core.seat.seats import shown
from kybernate.types import SeatState
from sidecar.verdict import Verdict, View, judge, spared

ASK, YES, NO = Verdict.ASK, Verdict.YES, Verdict.NO


@pytest.mark.parametrize(
    ("state", "liveness", "readiness", "startup"),
    [
        ("", ASK, ASK, ASK),
        ("waiting", YES, NO, YES),
        ("running", ASK, ASK, ASK),
        ("starting", ASK, ASK, ASK),
        ("active", ASK, ASK, ASK),
        ("draining", ASK, ASK, ASK),
        ("parking", YES, YES, YES),
        ("parked", YES, YES, YES),
        ("waking", YES, YES, YES),
        ("dumping", YES, YES, YES),
        ("restoring", YES, YES, YES),
        ("failed", NO, NO, NO),
        ("gone", NO, NO, NO),
        ("lost", NO, NO, NO),
        ("unknown", YES, NO, YES),
    ],
)
def test_each_state_has_its_answers(state, liveness, readiness, startup):
    answers = [judge(role, View(state)) for role in ("liveness", "readiness", "startup")]
    assert answers == [liveness, readiness, startup]


def test_every_state_of_a_seat_is_known_here():
    # An unknown state is alive and not ready, which no seat but a waiting one is.
    odd = [s for s in SeatState if judge("readiness", View(shown(s))) is NO]
    assert {shown(s) for s in odd} <= {"waiting", "failed", "gone"}


@pytest.mark.parametrize(
    ("role", "view", "now", "wanted"),
    [
        ("liveness", View("active", 100.0), 129.9, True),
        ("liveness", View("active", 100.0), 130.0, False),
        ("liveness", View("active", 100.0, serves=True), 101.0, False),
        ("liveness", View("active", None), 101.0, False),
        ("readiness", View("active", 100.0), 101.0, False),
        ("startup", View("active", 100.0), 101.0, False),
    ],
)
def test_only_a_liveness_probe_is_spared_and_only_at_first(role, view, now, wanted):
    assert spared(role, 30.0, view, now) is wanted
