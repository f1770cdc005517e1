"""Certificates and keys are exchanged while pods are created: no creation fails."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.integration.hooks import until
from tests.integration.webhook.conftest import create, seat_pod
from tests.integration.webhook.test_admission import HOOKS, SECRET, VRAM, bundles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.cluster import Cluster
    from tests.integration.hooks import Webhook

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("webhook")]


class Load:
    """Pods created in dry runs, and handshakes as of an API server without a connection yet."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.created, self.shaken, self.problems = 0, 0, list[str]()
        self._cluster, self._namespace = cluster, namespace
        self._ending = threading.Event()
        work = (*[self._create] * 3, self._shake)
        self._threads = [threading.Thread(target=self._repeat, args=(one,)) for one in work]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, once: Callable[[], None]) -> None:
        while not self._ending.is_set():
            try:
                once()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a failed admission
                self.problems.append(repr(error))

    def _create(self) -> None:
        pod = seat_pod("rotated", annotations=VRAM)
        create(self._cluster.api(), self._namespace, pod, dryRun="All")
        self.created += 1

    def _shake(self) -> None:
        path = f"{HOOKS}/mutatingwebhookconfigurations/kyb-webhook"
        hook, *_ = self._cluster.api().get(path)["webhooks"]
        bundle = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
        context = ssl.create_default_context(cadata=bundle)
        address = ("127.0.0.1", self._cluster.ports.webhook)
        with socket.create_connection(address, 5) as plain:
            context.wrap_socket(plain, server_hostname="127.0.0.1").close()
        self.shaken += 1
        time.sleep(0.01)


@pytest.fixture
def load(control_plane: Cluster, namespace: str) -> Iterator[Load]:
    running = Load(control_plane, namespace)
    running.start()
    yield running
    running.stop()


def kept(cluster: Cluster, name: str) -> Any:
    return (cluster.api().get(SECRET).get("data") or {}).get(name)


def forget(cluster: Cluster, *names: str) -> None:
    """Take files out of the Secret; the webhook makes them anew."""
    cluster.api().patch(SECRET, {"data": dict.fromkeys(names)})


def wait_for(cluster: Cluster, name: str, before: Any) -> None:
    until(lambda: kept(cluster, name) not in (None, before), f"no new {name} in the Secret")
    # Into the next passes, in which whatever is served follows from what was kept.
    time.sleep(1)


def test_new_authorities_and_certificates_cost_no_admission(
    control_plane: Cluster, load: Load
) -> None:
    """Five authorities and five certificates under load; `load` counts what failed."""
    for _ in range(5):
        before = kept(control_plane, "tls.crt")
        forget(control_plane, "tls.key")
        wait_for(control_plane, "tls.crt", before)
        before = kept(control_plane, "tls.crt")
        forget(control_plane, "ca.key")
        wait_for(control_plane, "tls.crt", before)
    load.stop()
    print(f"{load.created} pods and {load.shaken} handshakes over ten exchanges")
    assert load.problems == []
    assert min(load.created, load.shaken) >= 50
    assert bundles(control_plane) == {kept(control_plane, "ca.crt")}


def test_an_emptied_secret_costs_no_admission(control_plane: Cluster, load: Load) -> None:
    before = kept(control_plane, "tls.crt")
    forget(control_plane, "ca.crt", "ca.key", "tls.crt", "tls.key")
    wait_for(control_plane, "tls.crt", before)
    load.stop()
    assert load.problems == []
    assert load.created >= 10


def test_idle_and_stuck_callers_keep_nobody_out(
    control_plane: Cluster, namespace: str, webhook: Webhook
) -> None:
    """More of them than there are threads, at each stage of a request."""
    address = ("127.0.0.1", control_plane.ports.webhook)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        for number in range(60):
            plain = stack.enter_context(socket.create_connection(address, 5))
            if number % 3 == 1:
                plain.sendall(b"\x16\x03\x01\x02")
            elif number % 3 == 2 and number < 24:
                wrapped = stack.enter_context(context.wrap_socket(plain))
                wrapped.sendall(head)
        pod = seat_pod("patient", annotations=VRAM)

        def answered() -> bool:
            with contextlib.suppress(Exception):
                return bool(create(control_plane.api(), namespace, pod, dryRun="All"))
            return False

        started = time.monotonic()
        until(answered, "the stuck callers keep the API server out", 60)
        assert time.monotonic() - started < 30
    assert "Traceback" not in webhook.log()
    assert keys.MANAGED_LABEL in pod["metadata"]["labels"]
