"""The webhook as a process: gunicorn in front, certificates and a watch behind.

All threads start in the worker, after gunicorn has forked it.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication

from kybernate import keys
from kybernate.adapters.k8s import Api, Watcher
from kybernate.adapters.pki import write_private
from kybernate.runtime.deadlines import Worker, limit_requests
from kybernate.runtime.grants import ArtifactGrants
from kybernate.runtime.serve import ProbeServer, configure_logging
from webhook.app import Known, make_app
from webhook.certs import Bundles, FolderStore, Keeper, KeeperThread, SecretStore

if TYPE_CHECKING:
    from flask import Flask

    from kybernate.settings.webhook import WebhookSettings

log = logging.getLogger(__name__)

_SHUTDOWN_S = 3


class LeafContext:
    """The TLS context for new connections: another one for each certificate.

    A context in use isn't changed: a handshake that began between its certificate and its key
    would fail.
    """

    def __init__(self, request_s: float) -> None:
        """`request_s`: how long a request may take to come (s)."""
        self._request_s = request_s
        self.context = self._make()

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        limit_requests(context, self._request_s)
        return context

    def use(self, certificate: bytes, key: bytes) -> None:
        """Serve this leaf from now on."""
        context = self._make()
        # OpenSSL reads certificates with keys from files alone.
        with tempfile.TemporaryDirectory(prefix="kyb-webhook-") as folder:
            path = Path(folder) / "leaf.pem"
            write_private(path, certificate + key)
            context.load_cert_chain(path)
        self.context = context


class Service:
    """What runs in the worker beside the requests."""

    def __init__(self, settings: WebhookSettings, api: Api, leaf: LeafContext) -> None:
        self.known = Known()
        self.grants = ArtifactGrants()
        self._api = api
        self._watch = Watcher(api, keys.GPU_NODES_PATH, {}, self.known.on_event, "GPUNodes")
        store = (
            FolderStore(settings.cert_dir)
            if settings.cert_dir
            else SecretStore(api, settings.secret)
        )
        bundles = Bundles(api, settings.configuration)
        self._keeper = KeeperThread(
            Keeper(settings, store, bundles.publish, leaf.use), settings.check_s
        )
        self._probes = ProbeServer(*settings.probe_address, self.not_ready)

    def start(self) -> None:
        """Start everything."""
        self._watch.start()
        self.grants.start(self._api)
        self._keeper.start()
        self._probes.start()

    def stop(self) -> None:
        """Stop everything, within seconds."""
        self._probes.stop()
        self._keeper.stop()
        self.grants.stop()
        self._watch.stop()

    def not_ready(self) -> str | None:
        """Why reviews can't be answered well yet, in a sentence."""
        if self._keeper.problem:
            return self._keeper.problem
        if not self._watch.synced.is_set():
            return self._watch.last_error or "GPUNodes are not listed yet"
        return self.grants.not_ready()


class Server(BaseApplication):  # type: ignore[misc]
    """gunicorn with one worker: what is known of the cluster is kept in memory."""

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises ConfigError if the credentials can't be read."""
        self._settings = settings
        self._api = Api(settings.kubeconfig, "kyb-webhook")
        self._leaf = LeafContext(settings.request_s)
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        for name, value in {
            "bind": [self._settings.listen],
            "workers": 1,
            "worker_class": Worker,
            "threads": self._settings.threads,
            # Longer than Go's HTTP client keeps an idle connection, so that it closes first.
            "keepalive": 120,
            "graceful_timeout": _SHUTDOWN_S,
            # It only tells gunicorn that this is TLS; the context below is what is used.
            "certfile": os.devnull,
            "keyfile": os.devnull,
            "ssl_context": lambda _config, _default: self._leaf.context,
            # Nobody steers us by a socket in root's home.
            "control_socket_disable": True,
            "proc_name": "kyb-webhook",
            "worker_exit": self._stop,
            "errorlog": "-",
            "loglevel": self._settings.log_level.lower(),
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Called by gunicorn in the worker."""
        configure_logging(self._settings.log_level)
        self._service = Service(self._settings, self._api, self._leaf)
        self._service.start()
        known, grants = self._service.known, self._service.grants
        return make_app(self._settings, lambda: known.cluster, grants.all)

    def _stop(self, _arbiter: Any, _worker: Any) -> None:
        service = getattr(self, "_service", None)
        if service is not None:
            service.stop()
