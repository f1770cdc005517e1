"""Counts its answers, over all workers."""

import multiprocessing
import secrets

COUNT = multiprocessing.Value("i", 0)
TOKEN = secrets.token_hex(8)


def application(_environ, start_response):
    """One answer: its number, and what no other server knows."""
    with COUNT.get_lock():
        COUNT.value += 1
        body = f"{COUNT.value} {TOKEN}".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
