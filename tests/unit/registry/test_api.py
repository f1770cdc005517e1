"""Who may call what, what bad input is told, and that the OpenAPI document says what is served."""

from __future__ import annotations

import itertools
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.adapters.registry import wire
from registry.http.callers import Role, read_caller
from registry.http.calls import READERS
from registry.http.routes import routes
from tests.unit.registry.replica import (
    MAX_BODY,
    Replica,
    agent_certificate,
    artifact,
    name_of,
    named_certificate,
    pod,
    recording,
)

if TYPE_CHECKING:
    from registry.http.calls import Route

ONE = name_of(1)
CERTIFICATES = {
    Role.AGENT: agent_certificate("n1"),
    Role.CONTROLLER: named_certificate(keys.CN_CONTROLLER),
    Role.PROXY: named_certificate(keys.CN_PROXY),
}
BODIES: dict[str, Any] = {
    "recordArtifact": recording("n1", 1),
    "reportCopy": {
        "digest": "ab" * 32,
        "held": {"place": "ram", "node": "n1", "state": "verified"},
    },
    "takeLease": {"seconds": 10},
    "renewLease": {"seconds": 10, "token": 1},
    "reportStop": {"proof": "deleted", "why": "gone"},
    "claimPod": {"artifact": f"ns/{ONE}", "successor": "u2", "node": "n1"},
    "namespaceKey": {"pod": "u1"},
    "shredNamespace": {"why": "told to"},
    "settlePod": {"why": "looked"},
    "settleAll": {"why": "looked"},
}
QUERIES = {
    "dropCopy": "?place=nvme&node=n1",
    "giveLeaseBack": "?token=1",
    "latestArtifact": "?namespace=ns&model=m",
    "releaseClaim": "?successor=u2",
}


def filled(route: Route) -> str:
    """A path of the route that can be called."""
    parts = {"namespace": "ns", "name": ONE, "uid": "u1"}
    return route.path.format(**parts) + QUERIES.get(route.name, "")


def test_each_call_is_for_its_roles(replica: Replica) -> None:
    for route, role in itertools.product(replica.routes, Role):
        got = replica.call(CERTIFICATES[role], route.method, filled(route), BODIES.get(route.name))
        assert (got.status != 403) == (role in route.roles), (route.name, role, got)
        if got.status == 403:
            assert "may not do that" in got.error
        elif got.status < 300:
            route.answer.model_validate(got.body, strict=False)


def test_proxies_read_and_agents_write() -> None:
    """What the roles are meant to be, apart from the table that says so."""
    for route in routes(None, None, None):  # type: ignore[arg-type]  # nothing is called
        if route.method == "GET":
            assert route.roles == READERS
        else:
            assert Role.PROXY not in route.roles
            assert (Role.AGENT in route.roles) == ("settle" not in route.name)


@pytest.mark.parametrize(
    "certificate",
    [
        {},
        named_certificate("kyb-scheduler"),
        named_certificate("n1.agent.kyb.ai"),
        {**agent_certificate("n1"), **named_certificate(keys.CN_CONTROLLER)},
        {"subjectAltName": (("DNS", "n1.agent.kyb.ai"), ("DNS", "n2.agent.kyb.ai"))},
        {"subjectAltName": (("DNS", ".agent.kyb.ai"),)},
        {"subject": ((("commonName", keys.CN_CONTROLLER),), (("commonName", keys.CN_PROXY),))},
    ],
)
def test_others_may_not_call(replica: Replica, certificate: dict[str, Any]) -> None:
    got = replica.call(certificate, "GET", "/v1/artifacts")
    assert (got.status, "your certificate names" in got.error) == (403, True)


def test_an_agents_name_may_be_longer_than_a_common_name() -> None:
    node = "ip-10-0-0-1." + "a" * 60 + ".example"
    certificate = agent_certificate(node)
    certificate["subject"] = ((("commonName", keys.agent_server_name(node)[:64]),),)
    caller = read_caller(certificate)
    assert not isinstance(caller, str)
    assert (caller.role, caller.node) == (Role.AGENT, node)


def test_an_agent_speaks_for_its_own_node(replica: Replica) -> None:
    token = replica.token("n1", "u1")
    assert replica.record("n1", ONE, token, held={"node": "n2"}).status == 403
    assert replica.record("n1", ONE, token).status == 201
    body = {"digest": "ab" * 32, "held": {"place": "ram", "node": "n2", "state": "verified"}}
    got = replica.agent("n1", "PUT", f"{artifact(ONE)}/copies", body)
    assert (got.status, "can't speak for node n2" in got.error) == (403, True)
    path = f"{artifact(ONE)}/copies?place=nvme&node=n1&forget=gone"
    assert replica.agent("n2", "DELETE", path).status == 403
    assert replica.claim("n1", "u1", ONE, "u2", node="n2").status == 403
    assert replica.controller("DELETE", path).status == 200


def test_the_document_describes_each_route_and_no_other(replica: Replica) -> None:
    document = replica.proxy("/openapi.json").body
    served = {
        (re.sub(r"<(\w+)>", r"{\1}", rule.rule), method)
        for rule in replica.app.url_map.iter_rules()
        if rule.rule != "/openapi.json"
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    described = {
        (path, method.upper()): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert set(described) == served
    for route in replica.routes:
        operation = described[route.path, route.method]
        assert operation["operationId"] == route.name
        parameters = {(one["in"], one["name"]) for one in operation["parameters"]}
        assert parameters == {
            *(("path", name) for name in re.findall(r"{(\w+)}", route.path)),
            *(("query", name) for name in route.query.model_fields),
        }
        assert ("requestBody" in operation) == (route.body is not None)


def test_every_schema_of_the_document_is_there_and_used(replica: Replica) -> None:
    document = replica.proxy("/openapi.json").body
    used = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert used == set(document["components"]["schemas"])


def test_statuses_that_come_are_described(replica: Replica) -> None:
    document = replica.proxy("/openapi.json").body
    token = replica.token("n1", "u1")
    seen: dict[str, set[int]] = {}
    for route in replica.routes:
        for body in (BODIES.get(route.name), {"x": 1}, recording("n1", token)):
            for role in Role:
                got = replica.call(CERTIFICATES[role], route.method, filled(route), body)
                seen.setdefault(route.name, set()).add(got.status)
    for route in replica.routes:
        described = document["paths"][route.path][route.method.lower()]["responses"]
        assert {str(status) for status in seen[route.name]} <= set(described), route.name
    assert {201, 200, 400, 403, 404, 409} == set().union(*seen.values())


def test_answers_are_what_the_models_say(replica: Replica) -> None:
    token = replica.token("n1", "u1")
    entry = replica.record("n1", ONE, token, parent=f"ns/{name_of(0)}").body
    assert wire.Entry.model_validate_json(json.dumps(entry)).parent == f"ns/{name_of(0)}"
    page = wire.Page.model_validate_json(json.dumps(replica.proxy("/v1/artifacts").body))
    assert [item.id for item in page.items] == [f"ns/{ONE}"]
    known = wire.Pod.model_validate_json(json.dumps(replica.proxy(pod("u1")).body))
    assert (known.token, known.holder, known.stopped) == (token, "n1", None)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/artifacts?limit=0", "limit"),
        ("/v1/artifacts?limit=501", "limit"),
        ("/v1/artifacts?limit=x", "limit"),
        ("/v1/artifacts?limit=1&limit=2", "limit"),
        ("/v1/artifacts?place=tape", "place"),
        ("/v1/artifacts?state=lost", "state"),
        ("/v1/artifacts?after=1", "after"),
        ("/v1/artifacts?after=99999999999999999999:ns/a", "after"),
        ("/v1/artifacts?namespace=A", "namespace"),
        ("/v1/artifacts?model=%00", "model"),
        ("/v1/artifacts?nonsense=1", "nonsense"),
        ("/v1/latest?namespace=ns", "name a pod"),
        ("/v1/latest", "namespace"),
        (f"/v1/artifacts/NS/{ONE}", "namespace"),
        ("/v1/artifacts/ns/x", "name"),
        ("/v1/artifacts/ns/%00", "name"),
        ("/v1/pods/ns/u%201", "uid"),
    ],
)
def test_wrong_parameters_are_named(replica: Replica, path: str, field: str) -> None:
    got = replica.proxy(path)
    assert (got.status, field in got.error) == (400, True), got
    assert len(got.error) < 500


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"digest": "x"}, "artifact.digest"),
        ({"size": -1}, "artifact.size"),
        ({"size": 2**53}, "artifact.size"),
        ({"size": "7"}, "artifact.size"),
        ({"size": 1.5}, "artifact.size"),
        ({"model": "a\u0000b"}, "artifact.model"),
        ({"model": "a" * 513}, "artifact.model"),
        ({"pod": "Model"}, "artifact.pod"),
        ({"parent": "x"}, "artifact.parent"),
        ({"facts": {"a": []}}, "artifact.facts"),
        ({"facts": {str(number): 1 for number in range(65)}}, "artifact.facts"),
        ({"held": {"place": "object"}}, "held"),
        ({"held": {"store": "s3://x"}}, "held"),
        ({"held": {"state": "fine"}}, "held.state"),
        ({"unknown": 1}, "artifact.unknown"),
    ],
)
def test_wrong_bodies_are_named(replica: Replica, changes: dict[str, Any], field: str) -> None:
    got = replica.record("n1", ONE, replica.token("n1", "u1"), **changes)
    assert (got.status, got.error.startswith(field)) == (400, True), got
    assert len(got.error) < 500


def test_other_calls_are_answered_in_words(replica: Replica) -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("POST", "/v1/artifacts", 405),
        ("GET", "/v1/artifacts/ns", 404),
        ("PATCH", pod("u1"), 405),
    ):
        got = replica.controller(method, path)
        assert (got.status, "/openapi.json" in got.error) == (status, True)


def test_a_body_beyond_the_limit_is_refused(replica: Replica) -> None:
    got = replica.record("n1", ONE, 1, model="x" * (MAX_BODY + 1))
    assert got.status == 413


def test_a_mistake_of_ours_shows_no_traceback(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("registry.http.app._read", lambda *_: 1 / 0)
    with caplog.at_level(logging.CRITICAL):
        got = replica.proxy("/v1/artifacts")
    assert (got.status, "ZeroDivisionError" in got.error) == (500, True)
