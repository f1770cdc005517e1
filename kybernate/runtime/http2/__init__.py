"""A server's side of HTTP/2 (RFC 9113, RFC 7541), no more of it than calls of WSGI need."""

from __future__ import annotations

from .connection import Connection
from .conversation import Broken, Conversation, Request

__all__ = ["Broken", "Connection", "Conversation", "Request"]
