"""Requests through the proxy while parts are replaced: each is answered, or counted."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import requests

from tests.kit.clients.models import Models

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kit.clients.models import Answer
    from tests.upgrade.fleet import Fleet

PAUSE_S = 0.1
"""Seconds between a client's requests."""
AGAIN = (429, 503)
"""Statuses with which docs/reference/serving/proxy.md has a client ask again, if they come with
Retry-After."""
PATIENCE_S = 60.0
"""Seconds for which a client asks again; after that its request was refused."""


@dataclass(slots=True)
class Tally:
    """What became of the requests; `wrong` tells of each that was refused or answered falsely."""

    answered: int = 0
    repeated: int = 0
    wrong: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


@dataclass(slots=True)
class Caller:
    """A client that asks its models in turn and knows what each has to answer."""

    fleet: Fleet
    models: Sequence[str]
    tally: Tally = field(default_factory=Tally)
    counters: dict[str, int] = field(default_factory=dict)
    boots: dict[str, str] = field(default_factory=dict)
    _tried: int = 0

    def call(self) -> None:
        """Ask each model once."""
        for model in self.models:
            began = time.monotonic()
            self._tried = 0
            self._ask(model, began + PATIENCE_S)
            self.tally.slowest_s = max(self.tally.slowest_s, time.monotonic() - began)

    def _ask(self, model: str, until: float) -> None:
        while True:
            self._tried += 1
            try:
                answer = ask(self.fleet.proxy_url, model)
            except (requests.RequestException, KeyError, ValueError) as error:
                self.tally.wrong.append(f"{model}: {type(error).__name__}: {error}")
                return
            if answer.status == 200:
                self._judge(model, answer)
                return
            if answer.status not in AGAIN or "Retry-After" not in answer.headers:
                self.tally.wrong.append(f"{model}: {answer.status} {answer.body}")
                return
            if time.monotonic() > until:
                self.tally.wrong.append(f"{model}: asked {self._tried} times: {answer.body}")
                return
            self.tally.repeated += 1
            time.sleep(min(1.0, float(answer.headers["Retry-After"])))

    def _judge(self, model: str, answer: Answer) -> None:
        """A request that was not answered may have been counted, and none twice."""
        self.tally.answered += 1
        least = self.counters.get(model, 0) + 1
        boot = str(answer.body["kyb"]["boot"])
        if not answer.intact or not least <= answer.counter < least + self._tried:
            self.tally.wrong.append(f"{model}: {answer.body['kyb']}, and not {least}")
        if boot != self.boots.setdefault(model, boot):
            self.tally.wrong.append(f"{model}: it began again")
        self.counters[model] = answer.counter


def ask(url: str, model: str) -> Answer:
    """One request with a connection of its own."""
    models = Models(url)
    try:
        return models.ask(model, limit=PATIENCE_S)
    finally:
        models.close()


@contextmanager
def flowing(callers: Sequence[Caller]) -> Iterator[Tally]:
    """Each caller calls from a thread of its own until the end; gives what became of all since."""
    ended = threading.Event()
    for caller in callers:
        caller.tally = Tally()

    def keep_calling(caller: Caller) -> None:
        while not ended.is_set():
            caller.call()
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=keep_calling, args=(one,)) for one in callers]
    total = Tally()
    for thread in threads:
        thread.start()
    try:
        yield total
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for tally in (caller.tally for caller in callers):
            total.answered += tally.answered
            total.repeated += tally.repeated
            total.wrong += tally.wrong
            total.slowest_s = max(total.slowest_s, tally.slowest_s)
