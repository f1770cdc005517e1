"""The controller's account makes no pod for a RestoreRequest but the one that is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kybernate import keys
from kybernate.api.restoring.copies import pod_to_make
from kybernate.api.restoring.requests import read_restore
from kybernate.errors import NotFoundError, RetryableError
from tests.unit.api.restoring.test_copies import admitted, written
from tests.unit.controller.test_restores import item
from webhook.asked import Asked

CHOSEN = {"artifact": "shop/a@20260131T120000Z-00c0ffee", "sourceUID": "u1", "pod": "copy"}


def asked(found: Any) -> Asked:
    def get(path: str, *, timeout: float) -> Any:
        assert path.endswith("/namespaces/shop/restorerequests/once")
        if isinstance(found, Exception):
            raise found
        return found

    return Asked(SimpleNamespace(get=get))  # type: ignore[arg-type]


def made() -> dict[str, Any]:
    pod = pod_to_make(read_restore({**item(), "status": CHOSEN}), admitted(written()))
    assert pod is not None
    return pod


def test_what_was_asked_for_is_let_in_and_nothing_else() -> None:
    wanted = {**item(), "status": CHOSEN}
    assert asked(wanted).unasked(made()) == ""
    other = {**item(), "status": {**CHOSEN, "pod": "other"}}
    assert "asks for another pod" in asked(other).unasked(made())
    pod = made()
    pod["metadata"]["annotations"][keys.MADE_FOR] = "/r1"
    assert "names no RestoreRequest" in asked(wanted).unasked(pod)
    assert "nothing of the name" in asked(NotFoundError("nothing of the name")).unasked(made())
    unreadable = {**wanted, "spec": {**wanted["spec"], "as": "twin"}}
    assert "can't read it" in asked(unreadable).unasked(made())


def test_an_api_server_that_does_not_answer_is_asked_again() -> None:
    with pytest.raises(RetryableError):
        asked(RetryableError("away")).unasked(made())
