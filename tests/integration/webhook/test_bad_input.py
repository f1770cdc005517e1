"""What nobody should send, over TLS to the process: no hang, no traceback, an answer in JSON."""

from __future__ import annotations

import base64
import json
import ssl
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.integration.webhook.test_admission import HOOKS
from tests.kit.breaks.spoil import Spoiler
from tests.kit.clients.caller import NOT_HTTP, Caller, large
from tests.unit.webhook.test_fuzz import GOOD, WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster
    from tests.integration.hooks import Webhook

pytestmark = pytest.mark.integration

COUNT = 1000


@pytest.fixture
def caller(control_plane: Cluster, webhook: Webhook) -> Iterator[Caller]:
    """A caller as the API server is one; afterwards the log holds no traceback."""
    path = f"{HOOKS}/mutatingwebhookconfigurations/kyb-webhook"
    hook, *_ = control_plane.api().get(path)["webhooks"]
    bundle = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
    made = Caller(control_plane.ports.webhook, ssl.create_default_context(cadata=bundle))
    yield made
    made.close()
    assert "Traceback" not in webhook.log()


def test_spoilt_reviews_over_tls(caller: Caller) -> None:
    found = dict.fromkeys((200, 400), 0)
    for seed in range(COUNT):
        random = Random(-seed)
        body = Spoiler(random, WORDS).body(random.choice(GOOD), "request", "object")
        status, said = caller.post(random.choice(("/mutate", "/validate")), body)
        assert status in found, (seed, status, said)
        found[status] += 1
    print(found, f"slowest {caller.slowest_s * 1000:.0f} ms")
    assert min(found.values()) > COUNT / 10
    assert caller.slowest_s < 5


@pytest.mark.parametrize("text", NOT_HTTP, ids=range(len(NOT_HTTP)))
def test_what_is_no_request_is_turned_away(caller: Caller, text: bytes) -> None:
    told = caller.raw(text)
    # The last of several, if it was told to go on first.
    head, _, body = told.rpartition(b"\r\n\r\n")
    assert head.rpartition(b"HTTP/1.1 ")[2].startswith(b"4"), told[:200]
    assert json.loads(body)["error"]


@pytest.mark.parametrize("mib", [7, 32])
@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_are_answered(caller: Caller, mib: int, *, chunked: bool) -> None:
    """Four times what is read at most: much more may take longer than a caller has on a busy
    machine, and then it is cut off."""
    headers = {} if chunked else {"Content-Length": str(mib << 20)}
    status, said = caller.post("/mutate", large(mib), **headers)
    assert (status, bool(said["error"])) == (400 if mib == 7 else 413, True)
    assert caller.slowest_s < 15
