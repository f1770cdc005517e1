"""Histories of the real registry are linearizable, and the checker tells where they aren't."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.saved.histories import apart
from bench.saved.histories.faulty import CLOCK_JUMPS, FAULTS
from bench.saved.histories.tried import BELOW_FAKETIME, SKEW, Bench, Kind
from kybernate.errors import KybernateError
from tests.integration.registry.conftest import new_database
from tests.kit import gobuild
from tests.kit.breaks import linearizable
from tests.kit.breaks.linearizable import ILLEGAL, OK

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.servers.postgresql import Postgresql

pytestmark = [
    pytest.mark.integration,
    # Where a replica dies between the connect and TLS, Python itself leaves the socket open.
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]

HISTORIES = 80
FEWER = 40
CUT_OFF = 12
KILL_EVERY = 4

BLANK = {
    "version": 1,
    "node": "n1",
    "token": 100,
    "holder": "n1",
    "until_ms": 30_010,
    "stopped": "",
    "successor": "",
    "successor_node": "",
    "artifact": "",
    "ended": False,
}
"""A pod after its first lease."""


@pytest.fixture(scope="module", autouse=True)
def _checker() -> None:
    if reason := linearizable.why_not():
        pytest.skip(reason)
    linearizable.ensure()


def call(kind: str, at: int, status: int, /, **more: Any) -> dict[str, Any]:
    """A call that takes 10 ms from `at` on; it is all of a pod's that is asked for."""
    times = {"call": at, "return": at + 10, "call_ms": at, "return_ms": at + 10}
    said = {"kind": kind, "node": "n1", **times, "status": status, **more}
    return said | ({"lasts_ms": 30_000, "runs": True} if kind == "lease" else {})


def lease(at: int, /, **more: Any) -> dict[str, Any]:
    answer = BLANK | {"until_ms": at + 30_010} | more
    return call("lease", at, 200, answer=answer, node=answer["holder"])


FIRST = lease(0)
SECOND = BLANK | {"token": 105, "version": 2, "until_ms": 30_035}

JUDGED = {
    "one after another": (OK, [FIRST, lease(20, token=101, version=2)]),
    "the same token": (ILLEGAL, [FIRST, lease(20, token=100, version=2)]),
    "the same version": (ILLEGAL, [FIRST, lease(20, token=101, version=1)]),
    "two writers": (ILLEGAL, [FIRST, lease(20, token=101, version=2, holder="n2", node="n2")]),
    "an old token": (
        ILLEGAL,
        [FIRST, lease(20, token=101, version=2), call("record", 40, 201, token=100)],
    ),
    "an old token while the new one was given": (
        OK,
        [FIRST, lease(20, token=101, version=2), call("record", 25, 201, token=100)],
    ),
    "a refused token": (
        OK,
        [FIRST, lease(20, token=101, version=2), call("record", 40, 409, token=100)],
    ),
    "a token refused for nothing": (ILLEGAL, [FIRST, call("record", 40, 409, token=100)]),
    "an old state read": (
        ILLEGAL,
        [FIRST, lease(20, token=101, version=2), call("get", 40, 200, answer=BLANK)],
    ),
    "a lost answer of a call that took effect": (
        OK,
        [FIRST, call("lease", 20, 0), call("get", 40, 200, answer=SECOND)],
    ),
    "a lost answer of a call that took none": (
        OK,
        [FIRST, call("lease", 20, 0), call("record", 40, 201, token=100)],
    ),
    "an effect that nobody asked for": (
        ILLEGAL,
        [FIRST, call("get", 40, 200, answer=BLANK | {"token": 105, "version": 2})],
    ),
    "a lease that ended before its time": (
        ILLEGAL,
        [FIRST, lease(29_000, token=30_000, version=2, holder="n2")],
    ),
    "a lease that another node took over in time": (
        OK,
        [
            FIRST,
            call("record", 40, 201, token=100),
            call(
                "lease",
                31_000,
                200,
                node="n2",
                answer=BLANK | {"token": 31_000, "version": 2, "holder": "n2", "until_ms": 61_010},
            )
            | {"runs": False},
        ],
    ),
    "a mistake of the registry's": (ILLEGAL, [FIRST, call("get", 40, 500)]),
}


def test_the_model_judges() -> None:
    found = linearizable.judge([calls for _, calls in JUDGED.values()])
    assert dict(zip(JUDGED, found, strict=True)) == {
        name: told for name, (told, _) in JUDGED.items()
    }


def test_what_the_checker_cannot_read_is_no_verdict() -> None:
    with pytest.raises(KybernateError, match='no rule for kind "sleep"'):
        linearizable.judge([[call("sleep", 0, 200)]])


def test_the_checker_is_built_where_nothing_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gobuild, "cache_root", lambda: tmp_path)
    assert linearizable.ensure().is_relative_to(tmp_path)
    assert linearizable.judge([[FIRST]]) == [OK]


def test_histories_of_the_registry_are_linearizable(tmp_path: Path) -> None:
    found = Bench(tmp_path, seed=1).real(HISTORIES, KILL_EVERY)
    assert (found.histories, found.wrong, found.undecided) == (HISTORIES, [], 0)
    assert found.kills == HISTORIES // 4 // KILL_EVERY
    assert found.lost > HISTORIES // 2


def test_a_clock_that_jumps_breaks_no_promise(tmp_path: Path) -> None:
    found = Bench(tmp_path, seed=1).jumping(FEWER, 5)
    assert (found.histories, found.wrong, found.undecided) == (FEWER, [], 0)


def test_that_clock_is_told_where_nothing_is_allowed_for(tmp_path: Path) -> None:
    kind = Kind("off", program=("bench.saved.histories.faulty", CLOCK_JUMPS))
    assert Bench(tmp_path, seed=1)._on(kind, FEWER, 0).wrong


def test_two_replicas_on_postgresql_are_one_registry(
    tmp_path: Path, postgresql: Postgresql
) -> None:
    found = Bench(tmp_path, seed=1).several(FEWER, 5, new_database(postgresql))
    assert (found.histories, found.wrong, found.undecided) == (FEWER, [], 0)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_who_is_cut_off_breaks_no_promise(database: str) -> None:
    """One way at a time, between clients, replicas and PostgreSQL, or all is slow."""
    try:
        found = apart.made(database, CUT_OFF, seed=1)
    except KybernateError as error:
        if "Operation not permitted" in str(error):
            pytest.skip(f"no network namespace here: {error}")
        raise
    assert (found.histories, found.wrong, found.undecided) == (CUT_OFF, [], 0)
    assert found.cuts > 3
    assert found.lost > CUT_OFF


def test_a_clock_that_runs_too_fast_breaks_no_promise(tmp_path: Path) -> None:
    found = Bench(tmp_path, seed=1).skewed(CUT_OFF, 3)
    assert (found.histories, found.wrong, found.undecided) == (CUT_OFF, [], 0)


def test_that_rate_is_told_where_nothing_is_allowed_for(tmp_path: Path) -> None:
    kind = Kind("fast", program=BELOW_FAKETIME, rates=(1 + SKEW,))
    assert Bench(tmp_path, seed=1)._on(kind, CUT_OFF, 0).wrong


def test_replicas_whose_clocks_run_apart_go_by_that_of_postgresql(
    tmp_path: Path, postgresql: Postgresql
) -> None:
    found = Bench(tmp_path, seed=1).skewed_replicas(CUT_OFF, 3, new_database(postgresql))
    assert (found.histories, found.wrong, found.undecided) == (CUT_OFF, [], 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    assert Bench(tmp_path, seed=1).planted(fault)
