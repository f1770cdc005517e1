"""A trace of requests, played against what really serves the models: to be set beside what
`kybernate simulate` says of it."""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kybernate.core.simulate.trace import Trace
from tests.demo.player import checked

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 300.0


def drawn(models: int, seconds: float, rate: float, work: float, seed: int, gb: float) -> Trace:
    """Requests that come by chance, for models by Zipf's law, each worked on for as long."""
    rng, at = random.Random(seed), []
    now = rng.expovariate(rate)
    while now < seconds:
        at.append(now)
        now += rng.expovariate(rate)
    law = [1 / (n + 1) for n in range(models)]
    chosen = rng.choices(range(models), law, k=len(at))
    return Trace(at, chosen, [work] * len(at), [f"m{n}" for n in range(models)], [gb] * models)


def asked(url: str, model: str, work: float) -> float:
    """Seconds until a toy model answers through this address, less those that it works. Raises
    SystemExit where it is refused, or the model's memory isn't what it must be."""
    body = json.dumps({"model": model, "messages": [], "max_tokens": 1, "token_delay": work})
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body.encode(), kind)  # noqa: S310
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:  # noqa: S310
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace").strip()
        raise SystemExit(f"{model} is answered for by {error.code}: {said}") from None
    waited = time.perf_counter() - began - work
    if problem := checked(model, told)[1]:
        raise SystemExit(problem)
    return waited


def played(ask: Callable[[str, float], float], trace: Trace) -> list[float]:
    """What each request of the trace waited (s). `ask`: a model, by its name, for so many seconds
    of work; what it raises for one of them is raised after all are over."""
    began, count = time.monotonic(), len(trace.at)
    with ThreadPoolExecutor(max(1, count)) as pool:
        waits = []
        for at, model, work in zip(trace.at, trace.models, trace.work, strict=True):
            time.sleep(max(0.0, began + at - time.monotonic()))
            waits.append(pool.submit(ask, trace.names[model], work))
    return [wait.result() for wait in waits]


def difference(real: float, said: float) -> float:
    """Of a figure to what was said of it, as a share of that; 0 where both are nothing."""
    return abs(real / said - 1) if said else float(real > 0)
