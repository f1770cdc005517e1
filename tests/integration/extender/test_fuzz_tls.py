"""What nobody should send, over mutual TLS to the process: no hang, no traceback, JSON."""

from __future__ import annotations

import json
import ssl
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.kit.breaks.spoil import Spoiler
from tests.kit.clients.caller import NOT_HTTP, Caller, large
from tests.unit.extender.http.test_fuzz import WORDS, good

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.servers.extenderserver import Extender, World

pytestmark = pytest.mark.integration

COUNT = 1000


@pytest.fixture
def caller(extender: Extender) -> Iterator[Caller]:
    """A caller with the scheduler's certificate; afterwards the log holds no traceback."""
    context = ssl.create_default_context(cafile=str(extender.tls / "ca.crt"))
    context.load_cert_chain(extender.tls / "scheduler.crt", extender.tls / "scheduler.key")
    made = Caller(extender.port, context)
    yield made
    made.close()
    assert "Traceback" not in extender.log


def test_spoilt_calls_over_tls(caller: Caller, world: World) -> None:
    node = world.node().encode()
    bodies = {
        verb: [body.replace(b'"n1"', b'"' + node + b'"') for body in of]
        for verb, of in good().items()
    }
    found = dict.fromkeys((200, 400), 0)
    for seed in range(COUNT):
        random = Random(-seed)
        verb = random.choice(sorted(bodies))
        body = Spoiler(random, WORDS).body(random.choice(bodies[verb]), "Pod")
        status, said = caller.post(f"/v1/{verb}", body)
        assert status in found, (seed, verb, status, said)
        found[status] += 1
    print(found, f"slowest {caller.slowest_s * 1000:.0f} ms")
    assert min(found.values()) > COUNT / 20
    assert caller.slowest_s < 5


@pytest.mark.parametrize("text", NOT_HTTP, ids=range(len(NOT_HTTP)))
def test_what_is_no_request_is_turned_away(caller: Caller, text: bytes) -> None:
    told = caller.raw(text.replace(b"/mutate", b"/v1/filter"))
    # The last of several, if it was told to go on first.
    head, _, body = told.rpartition(b"\r\n\r\n")
    assert head.rpartition(b"HTTP/1.1 ")[2].startswith(b"4"), told[:200]
    assert json.loads(body)["Error"]


@pytest.mark.parametrize("mib", [128, 129])
def test_large_bodies_are_answered(caller: Caller, mib: int) -> None:
    status, said = caller.post("/v1/filter", large(mib), **{"Content-Length": str(mib << 20)})
    assert (status, bool(said["Error"])) == (400 if mib == 128 else 413, True)
    assert caller.slowest_s < 15
