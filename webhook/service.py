"""The webhook as a process: the watches and the keeper of certificates beside its calls."""

from __future__ import annotations

import ssl
import tempfile
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.adapters.k8s import Api, Watcher
from kybernate.adapters.k8s.requests import RequestIndex
from kybernate.adapters.pki import write_private
from kybernate.runtime.background import Background
from kybernate.runtime.grants import ArtifactGrants
from kybernate.runtime.http import Listening, Server
from kybernate.runtime.serve import ProbeServer, configure_logging
from kybernate.runtime.tls import server_context
from kybernate.settings.common import host_port
from webhook.app import Known, make_app
from webhook.asked import Asked
from webhook.certs import Bundles, FolderStore, Keeper, Keeping, SecretStore
from webhook.evictions import Asker, Evictions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask

    from kybernate.settings.webhook import WebhookSettings

_SHUTDOWN_S = 3


class LeafContext:
    """The TLS context for new connections: another one for each certificate.

    A context in use isn't changed: a handshake that began between its certificate and its key
    would fail.
    """

    def __init__(self) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def use(self, certificate: bytes, key: bytes) -> None:
        """Serve this leaf from now on."""
        # OpenSSL reads certificates with keys from files alone.
        with tempfile.TemporaryDirectory(prefix="kyb-webhook-") as folder:
            path = Path(folder) / "leaf.pem"
            write_private(path, certificate + key)
            self.context = server_context(path)


class Service:
    """What runs in the worker beside the requests."""

    def __init__(self, settings: WebhookSettings, api: Api, leaf: LeafContext) -> None:
        self.known = Known()
        self.grants = ArtifactGrants()
        self._requests = RequestIndex(api, attrgetter("pod"))
        self._asker = Asker(api, settings.evict_within_s)
        self.evictions = Evictions(
            self.known.seats,
            self._requests.of,
            self._requests.has,
            self._asker.ask,
            within=settings.evict_within_s,
        )
        self._api = api
        self._watch = Watcher(api, keys.GPU_NODES_PATH, {}, self.known.on_event, "GPUNodes")
        store = (
            FolderStore(settings.cert_dir)
            if settings.cert_dir
            else SecretStore(api, settings.secret)
        )
        bundles = Bundles(api, settings.configuration)
        self._keeping = Keeping(
            Keeper(settings, store, bundles.publish, leaf.use), settings.check_s
        )
        self._threads = Background(certificates=self._keeping.run)
        self._probes = ProbeServer(*host_port(settings.probe_listen), self.not_ready)

    def start(self) -> None:
        """Start everything."""
        self._watch.start()
        self._requests.watch.start()
        self._asker.start()
        self.grants.start(self._api)
        self._threads.start()
        self._probes.start()

    def stop(self) -> None:
        """Stop everything, within seconds."""
        self._probes.stop()
        self._threads.stop()
        self.grants.stop()
        self._asker.stop()
        self._requests.watch.stop()
        self._watch.stop()

    def not_ready(self) -> str | None:
        """Why reviews can't be answered well yet, in a sentence."""
        if self._keeping.problem:
            return self._keeping.problem
        if not self._watch.synced.is_set():
            return self._watch.last_error or "GPUNodes are not listed yet"
        return self._requests.not_ready() or self.grants.not_ready()


def make_server(settings: WebhookSettings) -> Server:
    """Raises ConfigError if the credentials can't be read."""
    leaf = LeafContext()
    listening = Listening(
        "kyb-webhook",
        settings.listen,
        settings.threads,
        request_s=settings.request_s,
        stop_s=_SHUTDOWN_S,
        log_level=settings.log_level,
    )
    api = Api(settings.kubeconfig, "kyb-webhook")
    return Server(listening, lambda: leaf.context, _serving(settings, api, leaf))


@contextmanager
def _serving(settings: WebhookSettings, api: Api, leaf: LeafContext) -> Iterator[Flask]:
    configure_logging(settings.log_level)
    service = Service(settings, api, leaf)
    service.start()
    try:
        yield make_app(
            *(settings, lambda: service.known.cluster, service.grants.all),
            *(service.evictions.answer, Asked(api).unasked),
        )
    finally:
        service.stop()
