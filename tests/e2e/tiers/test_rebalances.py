"""Pods go elsewhere by a plan that is approved, and whoever calls them waits for a moment.

docs/how-to/operate/rebalance.md
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.e2e.tiers.test_drains import deployment, reader, the_pod
from tests.e2e.tiers.test_restores import seats, site
from tests.kit.clients.models import Models
from tests.kit.howto import Page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.tiers.test_restores import Site
    from tests.kit.clients.kubectl import Kubectl
    from tests.kit.clients.models import Answer
    from tests.kit.pods import Pods

    Json = dict[str, Any]

__all__ = ["deployment", "reader", "seats", "site"]

pytestmark = pytest.mark.e2e

RBAL = f"/apis/{keys.API_VERSION}/namespaces/default/rebalancerequests"


@pytest.fixture
def page(site: Site, reader: Kubectl) -> Iterator[Page]:
    yield Page("rebalance", reader)
    api = site.cluster.api()
    for path in (RBAL, RBAL.replace("default", keys.NAMESPACE)):
        for item in api.get(path)["items"]:
            api.delete(f"{path}/{item['metadata']['name']}")


def place(pod: Json) -> tuple[str, str]:
    """Node and group."""
    return pod["spec"]["nodeName"], pod["metadata"]["annotations"][keys.ASSIGNED_GROUP]


class Caller:
    """Somebody who calls a model all the time, through the proxy."""

    def __init__(self, site: Site, model: str = "toy") -> None:
        self._url, self._model = site.cluster.proxy_url, model
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: list[Answer] = []

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(120)

    def lost_nothing(self) -> None:
        """Each request was answered once, by one workload that continued all the time."""
        answers = self.answers
        assert [one.status for one in answers] == [200] * len(answers)
        assert [one.counter for one in answers] == [*range(1, len(answers) + 1)]
        assert all(one.intact for one in answers)
        pause = max(one.seconds for one in answers)
        print(f"the longest answer took {pause:.1f} s, {len(answers)} answers")

    def _run(self) -> None:
        models = Models(self._url)
        while not self._over.is_set():
            self.answers.append(models.ask(self._model, limit=100))
            self._over.wait(0.05)
        models.close()


def test_a_pod_moves_to_another_group_and_no_request_is_lost(
    site: Site, seats: Pods, deployment: str, page: Page
) -> None:
    first = the_pod(seats)
    node, group = place(first)
    name, other = first["metadata"]["name"], "G1" if group == "G0" else "G0"
    wait_until(lambda: site.seat(node, name) != {}, 20, "not told of")
    with page, Caller(site) as caller:
        wait_until(lambda: len(caller.answers) > 3, 60, "nobody answers")
        emptied = page("kubectl kyb rebalance --empty", node=node)
        assert f"Move default/{name} " in emptied
        planned = page("kubectl kyb move", pod=name, group=other)
        assert f"from group {group} of {node} to group {other} of {node}." in planned
        assert place(the_pod(seats)) == (node, group), "nobody has approved it"
        (asked,) = site.cluster.api().get(RBAL)["items"]
        said = page("kubectl kyb approve", request=asked["metadata"]["name"])
        assert "1 of 1 moves are done" in said
        since = len(caller.answers)
        wait_until(lambda: len(caller.answers) > since + 3, 60, "nobody answers any more")
    second = the_pod(seats, but=first["metadata"]["uid"])
    assert place(second) == (node, other)
    caller.lost_nothing()
