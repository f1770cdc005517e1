"""How the extender is served: mutual TLS, and HTTP/2 for the kube-scheduler (docs/design/0026)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from extender.gangs import rendezvous
from extender.http.app import QUICK
from kybernate.runtime.http import Listening, Server
from kybernate.runtime.http2 import Http2
from kybernate.runtime.tls import MutualTls

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from wsgiref.types import WSGIApplication

    from kybernate.settings.extender import ExtenderSettings

_REQUEST_S = 10.0
"""For a request to come, TLS handshake included; the scheduler waits half as long by default."""

_STOP_S = 15

_SWITCH_S = 0.001
"""After which a thread that computes lets another one continue. A call stops to read and write
several times; by Python's default each time could cost it 5 ms, while something is listed or
explained."""


def make_server(
    settings: ExtenderSettings, serving: AbstractContextManager[WSGIApplication]
) -> Server:
    """`serving` is as in Server. Raises ConfigError for certificates that can't be right."""
    tls = MutualTls(settings.tls_dir, "extender")
    tls.check()
    sys.setswitchinterval(_SWITCH_S)
    listening = Listening(
        "kyb-extender",
        settings.listen,
        # Pods of gangs that wait for each other need threads beside those that work; a thread is
        # made when it is needed first.
        settings.threads + rendezvous.MOST,
        request_s=_REQUEST_S,
        stop_s=_STOP_S,
        log_level=settings.log_level,
        http2=Http2(settings.max_body_bytes, QUICK),
    )
    return Server(listening, tls, serving)
