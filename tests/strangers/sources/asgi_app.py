"""Counts its answers."""

import itertools
import secrets

COUNT = itertools.count(1)
TOKEN = secrets.token_hex(8)


async def application(scope, receive, send):
    """One answer: its number, and what no other server knows."""
    if scope["type"] != "http":
        return
    body = f"{next(COUNT)} {TOKEN}".encode()
    length = str(len(body)).encode()
    headers = [(b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
