"""The mutual-TLS server: gunicorn with one threaded worker, since the ledger is in memory.

Threads rather than processes also keep the kube-scheduler's connections open: a TLS handshake
per call would cost more than the call.
"""

from __future__ import annotations

import ssl
import sys
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication

from extender.gangs import rendezvous
from extender.http.worker import LingeringWorker
from kybernate import keys
from kybernate.runtime.tls import Contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from wsgiref.types import WSGIApplication

    from kybernate.settings.extender import ExtenderSettings

_REQUEST_S = 10.0
"""For a request to come, TLS handshake included; the scheduler waits half as long by default."""


_SWITCH_S = 0.001
"""After which a thread that computes lets another one go on. A call stops to read and write several
times; by Python's default each time could cost it 5 ms, while something is listed or explained."""


class Server(BaseApplication):  # type: ignore[misc]
    """Serves a WSGI application until SIGTERM; requests under way are finished."""

    def __init__(
        self,
        settings: ExtenderSettings,
        app: WSGIApplication,
        started: Callable[[], None],
        stopped: Callable[[], None],
    ) -> None:
        """`started` and `stopped` run in the serving process, around its life."""
        self._settings = settings
        self._app = app
        self._started = started
        self._stopped = stopped
        super().__init__()

    def load_config(self) -> None:
        """Tell gunicorn what to do; nothing of it comes from its own files or environment."""
        tls = self._settings.tls_dir
        options = {
            "bind": [self._settings.listen],
            "workers": 1,
            "worker_class": _taking(self._settings.max_body_bytes),
            # Pods of gangs that wait for each other need threads beside those that work; a thread
            # is made when it is needed first.
            "threads": self._settings.threads + rendezvous.MOST,
            # Longer than Go's HTTP client keeps an idle connection, so that it closes first.
            "keepalive": 120,
            "graceful_timeout": 15,
            "certfile": str(tls / "extender.crt"),
            "keyfile": str(tls / "extender.key"),
            "ca_certs": str(tls / "ca.crt"),
            "cert_reqs": ssl.CERT_REQUIRED,
            "do_handshake_on_connect": True,
            "ssl_context": Contexts(_REQUEST_S, ("h2", "http/1.1")),
            "control_socket_disable": True,
            "loglevel": self._settings.log_level.lower(),
            "post_worker_init": lambda _worker: self._started(),
            "worker_exit": lambda _server, _worker: self._stopped(),
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> WSGIApplication:
        """The application, as gunicorn asks for it."""
        sys.setswitchinterval(_SWITCH_S)
        return _closing(self._app)


def _taking(most_body: int) -> type[LingeringWorker]:
    """The worker for bodies of at most so many bytes: gunicorn gives it no settings of ours."""
    return type("LingeringWorker", (LingeringWorker,), {"most_body": most_body})


def _closing(app: WSGIApplication) -> WSGIApplication:
    """The application, with connections closed after each 503.

    Behind a Service the next connection may lead to the replica that can answer. gunicorn drops a
    header of the application's that says so.
    """

    def wrapped(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> Any:
            if status.startswith("503 "):
                start_response.__self__.force_close()
            return start_response(status, headers, error)

        return app(environ, start)

    return wrapped


def refuse_caller(environ: Mapping[str, Any]) -> str | None:
    """Why the peer of a request may not call the verbs, or None if it may."""
    certificate = environ["gunicorn.socket"].getpeercert() or {}
    names = [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    allowed = [keys.CN_SCHEDULER]
    if environ["REQUEST_METHOD"] == "GET":
        allowed.append(keys.CN_CONTROLLER)
    if len(names) == 1 and names[0] in allowed:
        return None
    found = ", ".join(names) or "no name"
    return f"only {' or '.join(allowed)} may ask that; your certificate names {found}"
