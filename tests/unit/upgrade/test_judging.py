"""What the matrix of releases counts as lost, as refused, and as asked for once more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import requests

from kybernate.errors import KybernateError
from tests.kit.clients.models import Answer
from tests.upgrade import seats, traffic, versions
from tests.upgrade.fleet import PARTS, Fleet
from tests.upgrade.seats import TIERS, Seats
from tests.upgrade.table import Row, Table
from tests.upgrade.traffic import Caller, Tally, flowing

if TYPE_CHECKING:
    from pathlib import Path

FLEET = cast("Fleet", SimpleNamespace(proxy_url="http://proxy"))
ALL_OLD = dict.fromkeys(PARTS, "0.1.0")


def answer(counter: int, *, status: int = 200, boot: str = "b", **headers: str) -> Answer:
    kyb = {"counter": counter, "checksum": "c", "expected": "c", "boot": boot, "pid": 7}
    return Answer(status, 0.0, 0.0, {"kyb": kyb}, headers)


AGAIN = answer(0, status=503, **{"Retry-After": "0"})


def script(monkeypatch: pytest.MonkeyPatch, module: Any, *answers: Answer | Exception) -> None:
    """The proxy answers with these, one after the other."""
    left = list(answers)

    def ask(_url: str, _model: str) -> Answer:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(module, "ask", ask)


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ([answer(1), answer(2)], 0),
        ([answer(1), AGAIN, answer(2)], 0),
        ([answer(1), AGAIN, answer(3)], 0),
        ([answer(1), answer(3)], 1),
        ([answer(2), answer(2)], 2),
        ([answer(1), answer(2, boot="another")], 1),
        ([answer(1), answer(0, status=503)], 1),
        ([answer(1), answer(0, status=404)], 1),
        ([answer(1), requests.ConnectionError("refused")], 1),
    ],
)
def test_a_request_is_answered_rightly_or_counted(
    monkeypatch: pytest.MonkeyPatch, answers: list[Answer | Exception], wrong: int
) -> None:
    script(monkeypatch, traffic, *answers)
    caller = Caller(FLEET, ["m", "m"])
    caller.call()
    assert len(caller.tally.wrong) == wrong
    assert caller.tally.repeated == answers.count(AGAIN)


@pytest.mark.parametrize(
    ("then", "kept"),
    [
        (answer(2), True),
        (answer(1), False),
        (answer(3), False),
        (answer(2, boot="another"), False),
        (answer(2, status=503), False),
        (requests.ReadTimeout("nobody there"), False),
    ],
)
def test_a_seat_that_does_not_go_on_is_lost(
    monkeypatch: pytest.MonkeyPatch, then: Answer | Exception, kept: bool
) -> None:
    script(monkeypatch, seats, answer(1), then)
    one = Seats(FLEET, "old")
    assert one.answers("nvme") == ""
    assert (one.answers("nvme") == "") is kept


def test_requests_of_all_callers_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "ask", lambda _url, _model: answer(1))
    with flowing([Caller(FLEET, ["a"]), Caller(FLEET, ["b"])]) as tally:
        pass
    assert tally.answered >= 2


def test_the_table_shows_each_tier_and_the_line_counts_it_all() -> None:
    fine = Row("agent today", ALL_OLD, {}, Tally(answered=9), 2.0)
    bad = Row("agent 0.1.0", ALL_OLD, {"nvme": "x: gone"}, Tally(4, 2, ["y: 404"]), 3.0, "z: no")
    table = Table([fine, bad])
    head, first, second = table.lines()
    assert head.split()[1:5] == list(TIERS)
    assert "LOST" not in first
    assert second.split()[2:6] == ["kept", "kept", "LOST", "kept"]
    assert bad.wrong == ["x: gone", "y: 404", "z: no"]
    for part in ('"steps": 2', '"lost": 2', '"refused": 1', '"again": 2', '"requests": 13'):
        assert part in table.line()


def test_a_clone_without_a_releases_commit_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(versions, "cache_root", lambda: tmp_path)
    monkeypatch.setitem(versions.RELEASES, "0.0.9", "0" * 40)
    with pytest.raises(KybernateError, match=r"lacks commit 0000.*--unshallow"):
        versions.version("0.0.9")
    assert not list((tmp_path / "releases").glob("*.part"))
