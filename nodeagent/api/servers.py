"""The agent's two doors: a Unix socket for the node, mutual TLS for the network."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import grpc

from kybernate.errors import ConfigError
from kybernate.gen import agent_pb2, peers_pb2
from kybernate.lib import rpc
from nodeagent.api.doorkeeper import MESSAGE_LIMIT, STATES_LIMIT, Doorkeeper

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.runtime.identity import Identity
    from nodeagent.api.peersapi import PeersApi
    from nodeagent.api.service import NodeApi

log = logging.getLogger(__name__)

# A proxy that vanished without a word is noticed within twice this.
_KEEPALIVE_MS = 2000
_CALLS_AT_ONCE = 1024
_OPTIONS = [
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_metadata_size", 8192),
    # States come in large messages: one is on its way while another is written.
    ("grpc.http2.lookahead_bytes", STATES_LIMIT),
    ("grpc.http2.max_frame_size", 1 << 20),
]


def _server(api: NodeApi, keeper: Doorkeeper, peers: PeersApi | None = None) -> grpc.aio.Server:
    limit = STATES_LIMIT if peers is not None else MESSAGE_LIMIT
    sizes = [(f"grpc.max_{way}_message_length", limit) for way in ("receive", "send")]
    server = grpc.aio.server(
        interceptors=(keeper,), options=_OPTIONS + sizes, maximum_concurrent_rpcs=_CALLS_AT_ONCE
    )
    rpc.serve(server, agent_pb2.DESCRIPTOR, "NodeAgent", api)
    if peers is not None:
        rpc.serve(server, peers_pb2.DESCRIPTOR, "Peers", peers)
    return server


async def serve_node(api: NodeApi, keeper: Doorkeeper, socket: Path) -> grpc.aio.Server:
    """Serve on a Unix socket that only root may open."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    server = _server(api, keeper)
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{socket}")
    finally:
        os.umask(before)
    await server.start()
    return server


async def serve_network(
    api: NodeApi,
    keeper: Doorkeeper,
    listen: str,
    identity: Identity,
    peers: PeersApi | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Serve with mutual TLS; returns the server and its port. `peers` answers other nodes' agents.
    Raises ConfigError."""
    server = _server(api, keeper, peers)
    try:
        port = server.add_secure_port(listen, _credentials(identity))
    except RuntimeError as error:
        raise ConfigError("listen", f"can't listen on {listen}: {error}") from error
    await server.start()
    return server, port


def _credentials(identity: Identity) -> grpc.ServerCredentials:
    """What is shown to whoever connects from then on: read again once a file has changed."""
    made = identity.stamp(), _configuration(identity)
    lock = threading.Lock()

    def newest() -> Any:
        nonlocal made
        with lock:
            stamp = identity.stamp()
            if stamp == made[0]:
                return None
            try:
                made = stamp, _configuration(identity)
            except ConfigError as error:
                log.warning("the certificate of before is shown on: %s", error)
                return None
            return made[1]

    return grpc.dynamic_ssl_server_credentials(made[1], newest, require_client_authentication=True)


def _configuration(identity: Identity) -> Any:
    shown = identity.shown()
    return grpc.ssl_server_certificate_configuration(
        [(shown.key, shown.certificate)], root_certificates=identity.authorities()
    )
