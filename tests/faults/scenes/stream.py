"""A long answer, word by word."""

from __future__ import annotations

import threading
import time

import requests

from tests.cluster.processes.control import wait_until

LIMIT = 60.0
"""Seconds for anything that should take one or two."""

_PATIENCE = 10.0
"""Seconds without a word that a stream may take; it brings one each 0.1 s."""


class Stream:
    """A long answer of a model, word by word: it keeps its seat busy until it is stopped."""

    def __init__(self, proxy: str, model: str) -> None:
        self._last = 0.0
        self._stop = threading.Event()
        self._body = {
            "model": model,
            "stream": True,
            "max_tokens": 4000,
            "token_delay": 0.1,
            "messages": [{"role": "user", "content": "hello"}],
        }
        self._url = f"{proxy}/v1/chat/completions"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._last, LIMIT, f"the stream of {model} brings nothing")

    def _run(self) -> None:
        session = requests.Session()
        session.trust_env = False
        try:
            with session.post(self._url, json=self._body, stream=True, timeout=LIMIT) as answer:
                for _ in answer.iter_lines():
                    self._last = time.monotonic()
                    if self._stop.is_set():
                        return
        except requests.RequestException:
            # Cut off by the fault: what has come so far tells.
            return

    def alive(self) -> bool:
        """Whether more comes, however busy the machine is: one that was cut brings nothing more."""
        before, end = self._last, time.monotonic() + _PATIENCE
        while self._last == before and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        return self._last > before

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(5)
