"""Lists of what users make are asked for in short pages: each object may be a MiB and more."""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from extender.state.evicted import Evicted
from kybernate.adapters.k8s.requests import RequestIndex
from kybernate.errors import RetryableError
from kybernate.runtime.grants import ArtifactGrants
from kybernate.runtime.policies import CheckpointPolicies
from tests.unit.k8s.script import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable


class Api:
    """Takes note of the first list that is asked for, and gives none."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.limit = 0

    def get(self, _path: str, params: dict[str, Any], *, timeout: float) -> NoReturn:
        self.limit = params["limit"]
        self.asked.set()
        raise RetryableError(f"not within {timeout} s")


def of_webhook(api: Any) -> Callable[[], None]:
    watch = RequestIndex(api, attrgetter("pod")).watch
    watch.start()
    return watch.stop


def of_extender(api: Any) -> Callable[[], None]:
    watch = Evicted(api, None, 1.0).requests.watch  # type: ignore[arg-type]
    watch.start()
    return watch.stop


def of_grants(api: Any) -> Callable[[], None]:
    found = ArtifactGrants()
    found.start(api)
    return found.stop


def of_policies(api: Any) -> Callable[[], None]:
    found = CheckpointPolicies()
    found.start(api)
    return found.stop


@pytest.mark.parametrize("start", [of_webhook, of_extender, of_grants, of_policies])
def test_a_page_of_what_users_make_fits_into_a_services_memory(
    start: Callable[[Any], Callable[[], None]],
) -> None:
    api = Api()
    stop = start(api)
    assert api.asked.wait(LIMIT_S)
    stop()
    assert 0 < api.limit * 1.5 * 2**20 <= 32 * 2**20
