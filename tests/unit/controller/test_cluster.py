"""What the controller writes into the API server: events that it takes."""

from __future__ import annotations

import re

import pytest

from controller.base.cluster import Cluster
from kybernate.api.requests import read_request
from kybernate.core.requests.reasons import Reason
from kybernate.errors import NotFoundError, RefusedError, RetryableError

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


@pytest.mark.parametrize("name", ["once", "a" * 199 + ".b", "a" * 199 + "-b", "a" * 253])
def test_an_event_has_a_name_that_is_one_however_long_its_requests_is(name):
    posted = []

    class Api:
        def post(self, path, body, **_):
            posted.append((path, body))

    meta = {"namespace": "shop", "name": name, "uid": "r1"}
    request = read_request({"metadata": meta, "spec": {"pod": "a", "mode": "Park"}})
    Cluster(Api(), 1.0).tell(request, Reason.PARKED, "it is parked")
    ((path, body),) = posted
    assert path == "/api/v1/namespaces/shop/events"
    made = body["metadata"]["generateName"] + "x7k2p"
    assert re.fullmatch(_SUBDOMAIN, made)
    assert len(made) <= 253


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, ""),
        (NotFoundError("it is gone"), ""),
        (RetryableError("it would violate a budget"), "it would violate a budget"),
    ],
)
def test_whether_a_pod_may_go_is_asked_without_evicting_it(error, why):
    posted = []

    class Api:
        def post(self, path, body, params, *, timeout):
            posted.append((path, body["kind"], params, timeout))
            if error is not None:
                raise error

    assert Cluster(Api(), 1.0).held_back("shop", "a") == why
    path = "/api/v1/namespaces/shop/pods/a/eviction"
    assert posted == [(path, "Eviction", {"dryRun": "All"}, 1.0)]


def test_what_the_account_may_not_ask_is_no_answer():
    class Api:
        def post(self, *_, **__):
            raise RefusedError("it may not")

    with pytest.raises(RefusedError):
        Cluster(Api(), 1.0).held_back("shop", "a")


OUT = "node.kubernetes.io/out-of-service"


@pytest.mark.parametrize(
    ("ready", "taints", "off", "away"),
    [
        ("True", [], "", ""),
        ("True", [{"key": "other"}], "", ""),
        ("Unknown", [], "", "node n1 is not ready"),
        ("False", "x", "", "node n1 is not ready"),
        ("Unknown", [{"key": OUT}], f"node n1 has the taint {OUT}", "node n1 is not ready"),
        ("True", [{"key": OUT}], *[f"node n1 has the taint {OUT}"] * 2),
        (None, None, *["node n1 is gone"] * 2),
    ],
)
def test_what_proves_that_a_node_is_off_and_what_only_makes_it_likely(ready, taints, off, away):
    class Api:
        def get(self, path, *, timeout):
            assert (path, timeout) == ("/api/v1/nodes/n1", 1.0)
            if ready is None:
                raise NotFoundError("there is none")
            conditions = [{"type": "MemoryPressure"}, {"type": "Ready", "status": ready}]
            meta, status = {"name": "n1"}, {"conditions": conditions}
            return {"metadata": meta, "spec": {"taints": taints}, "status": status}

    cluster = Cluster(Api(), 1.0)
    assert (cluster.is_off("n1"), cluster.is_away("n1")) == (off, away)
