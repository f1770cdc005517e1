"""HTTP/2 for WSGI: calls overlap on one connection. The protocol is the `h2` library's."""

from __future__ import annotations

from .connection import Connection
from .conversation import Broken, Conversation, Request
from .peers import Http2, Peers

__all__ = ["Broken", "Connection", "Conversation", "Http2", "Peers", "Request"]
