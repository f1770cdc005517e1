"""What an agent knows of TierPlacements whose API server is of another release."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kybernate import keys
from kybernate.errors import RefusedError
from kybernate.runtime.artifacts import Placements
from kybernate.runtime.listed import IfServed

ARTIFACT = "shop/birch-1-20261128T010203Z-1a2b3c4d"


class Server:
    """An API server that lets nobody list TierPlacements, and says which kinds it has."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def get(self, path: str, params: Any, *, timeout: float) -> dict[str, Any]:
        if path == f"/apis/{keys.API_VERSION}":
            return {"resources": [{"name": kind} for kind in self._kinds]}
        raise RefusedError(f"GET {path}: forbidden (HTTP 403)")

    def watch(self, path: str, params: Any, *, timeout: float) -> Any:
        raise RefusedError(f"GET {path}: forbidden (HTTP 403)")


@pytest.fixture
def placements():
    found = Placements()
    yield found
    found.stop()


def test_where_the_kind_is_unknown_nothing_is_pinned(placements) -> None:
    placements.start(Server("gpunodes"))
    end = time.monotonic() + 10
    while placements.unlisted is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert not placements.pinned(ARTIFACT)


def test_where_it_may_not_be_listed_anything_may_be_pinned(placements) -> None:
    placements.start(Server("gpunodes", "tierplacements"))
    placements.settle(10)
    assert placements.unlisted
    assert placements.pinned(ARTIFACT)


def test_how_many_kinds_are_not_served_is_known() -> None:
    class Later(Server):
        def get(self, path: str, params: Any, *, timeout: float) -> dict[str, Any]:
            if path.endswith("gpunodes"):
                return {"metadata": {"resourceVersion": "7"}}
            return super().get(path, params, timeout=timeout)

    found, later = IfServed(Server("shares")), IfServed(Later("gpunodes"))
    for source in (found, later):
        for path in (keys.GPU_NODES_PATH, keys.TIER_PLACEMENTS_PATH):
            assert not source.get(path, {}, timeout=1.0).get("items")
    with pytest.raises(RefusedError, match="forbidden"):
        found.get(keys.SHARES_PATH, {}, timeout=1.0)
    assert (found.missing, later.missing) == (2, 1)
    found._api = Later("gpunodes", "tierplacements")
    found.get(keys.GPU_NODES_PATH, {}, timeout=1.0)
    assert found.missing == 1
