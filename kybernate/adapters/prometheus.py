"""What a Prometheus has of the day's GPUs, as NVIDIA's dcgm-exporter tells it."""

from __future__ import annotations

import json
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit, urlunsplit
from urllib.request import urlopen

from kybernate.core.simulate.history import History
from kybernate.errors import ConfigError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from http.client import HTTPResponse

    Pod = tuple[str, str]

DEADLINE_S = 30.0
"""Of one question, its answer included."""
_LONGEST = 256 << 20
"""Bytes of an answer."""
_CHUNK = 1 << 16
_DAY = 86_400
_MINUTE = 60
_BY = "namespace, pod, exported_namespace, exported_pod"
# Of an instance of a GPU (MIG) the whole GPU's figures say nothing.
_MEMORY = 'DCGM_FI_DEV_FB_USED{GPU_I_ID=""}'
_WORK = 'DCGM_FI_DEV_GPU_UTIL{GPU_I_ID=""}'
_NO_URL = "it is no URL; write http://HOST:PORT of a Prometheus"
_GPUS = f"count by ({_BY}) ({_MEMORY})"
_MOST = f"max by ({_BY}) (max_over_time({_MEMORY}[1d]))"
_BUSY = f"max by ({_BY}) (avg_over_time({_WORK}[1m]))"


class Prometheus:
    """A server by its URL, which is only read. Every call raises ConfigError if the URL or what is
    behind it is no such server, and RetryableError if it doesn't answer now."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            # Nothing of it is told, as it may have a password.
            raise ConfigError("--prometheus", _NO_URL) from None
        scheme, place, *rest = parts
        shown = urlunsplit((scheme, place.rpartition("@")[2], *rest))
        if scheme not in ("http", "https"):
            raise ConfigError(shown, _NO_URL)
        if "@" in place:
            problem = (
                "no user and password can be sent; leave them out, and reach it by kubectl "
                "port-forward"
            )
            raise ConfigError(shown, problem)
        self._url = url.rstrip("/")

    def day(self, now: float) -> list[History]:
        """The last day of each pod that has GPUs now. `now` in seconds since 1970."""
        try:
            return self._day(now)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(self._url, "it answers as no Prometheus does") from error

    def _day(self, now: float) -> list[History]:
        series = self._ask("query", query=_GPUS, time=now)
        # A scraper that has labels of its own puts what the exporter said behind `exported_`.
        behind = "exported_" if any(one["metric"].get("exported_pod") for one in series) else ""
        gpus = _by_pod(series, behind)
        if not gpus:
            problem = (
                "it has no DCGM_FI_DEV_FB_USED of pods now; have it scrape NVIDIA's "
                "dcgm-exporter, and that one name the pods of GPUs (DCGM_EXPORTER_KUBERNETES)"
            )
            raise ConfigError(self._url, problem)
        most = _by_pod(self._ask("query", query=_MOST, time=now), behind)
        times = {"start": now - _DAY + _MINUTE, "end": now, "step": _MINUTE}
        busy = _by_pod(self._ask("query_range", query=_BUSY, **times), behind)
        return [
            History(
                name,
                namespace,
                int(float(found["value"][1])),
                float(most.get((namespace, name), found)["value"][1]),
                {float(at): float(share) / 100 for at, share in _values(busy, namespace, name)},
            )
            for (namespace, name), found in sorted(gpus.items())
        ]

    def _ask(self, what: str, **words: object) -> list[dict[str, Any]]:
        asked = f"{self._url}/api/v1/{what}?{urlencode(words)}"
        until = time.monotonic() + DEADLINE_S
        try:
            with urlopen(asked, timeout=DEADLINE_S) as answer:  # noqa: S310 - http, as was looked at
                found = json.loads(_read(answer, until))["data"]["result"]
        except HTTPError as error:
            said = error.read(500).decode(errors="replace").strip()
            raise ConfigError(self._url, f"it answers {error.code}: {said}") from error
        except (URLError, HTTPException, OSError) as error:
            raise RetryableError(f"{self._url} doesn't answer: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(self._url, "it answers as no Prometheus does") from error
        return list(found)


def _read(answer: HTTPResponse, until: float) -> bytes:
    """The body: who sends a byte now and then has no longer than others. Raises OSError."""
    found = bytearray()
    while len(found) < _LONGEST and (some := answer.read1(_CHUNK)):
        found += some
        if time.monotonic() > until:
            raise TimeoutError(f"the answer did not end within {DEADLINE_S:g} s")
    return bytes(found)


def _by_pod(series: Iterable[dict[str, Any]], behind: str) -> dict[Pod, dict[str, Any]]:
    """Each series by namespace and pod, whose labels begin with `behind`."""
    named = {
        (one["metric"].get(f"{behind}namespace", ""), one["metric"].get(f"{behind}pod", "")): one
        for one in series
    }
    return {pod: one for pod, one in named.items() if all(pod)}


def _values(series: dict[Pod, dict[str, Any]], *pod: str) -> list[tuple[float, str]]:
    found = series.get((pod[0], pod[1]))
    return found["values"] if found else []
