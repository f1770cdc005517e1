"""The connection to a box (`kybernate serve`), and its errors as sentences."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import click

from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIMIT = 150.0
"""Seconds that an answer may take: a box gives up a park or a wake after 120."""
_LONGEST = 64 << 20
"""Bytes of an answer."""
_PARKED = "parked"
_NEXT = {
    401: "give one by --key or KYB_BOX_KEY",
    403: "is --url right?",
    504: "once that is done, run this again",
}


class BoxLink:
    """A box by its URL: a `swaps.Place`. Each call raises ClickException."""

    without_nvme = "a box's NVMe isn't measured"

    def __init__(self, url: str, key: str = "") -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            # Nothing of it is told, as it may have a password.
            raise click.BadParameter(
                "write http://HOST:PORT of kybernate serve", param_hint="--url"
            )
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.hostname, port, timeout=_LIMIT)
        self._url, self._path = url.rstrip("/"), parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.memory = min(self._gpus())

    def park(self, seat: str, tier: Tier) -> tuple[int, Mapping[str, float]]:
        """See `Place`."""
        told = self._act("park", seat)
        if told["state"] != _PARKED or told["tier"] != Tier.RAM:
            raise click.ClickException(
                f"{seat} was parked, and is {told['state']} by now: a request woke it, or it left "
                "RAM. Run this while nobody asks for it"
            )
        return int(told["bytes"]), self._phases(told)

    def wake(self, seat: str) -> Mapping[str, float]:
        """See `Place`."""
        return self._phases(self._act("wake", seat))

    def _gpus(self) -> list[int]:
        """Bytes of each GPU, as the page's first event has them."""
        try:
            page = json.loads(self._ask("GET", "/ui/events"))
            if "park" not in page["acts"]:
                raise click.ClickException(
                    f"{self._url} parks nothing by hand: it is a cluster's proxy. Calibrate on a "
                    "node, by --socket"
                )
            found = [int(lane["memory"]) for lane in page["lanes"].values()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._is_none() from error
        if not found:
            raise self._is_none()
        return found

    def _act(self, act: str, seat: str) -> dict[str, Any]:
        """The model as it is then."""
        try:
            told = json.loads(self._ask("POST", f"/api/models/{act}/{quote(seat)}"))
            return {name: told[name] for name in ("state", "tier", "bytes", "phases")}
        except (ValueError, KeyError, TypeError) as error:
            said = f"the box at {self._url} is older than this command: update it, start it again"
            raise click.ClickException(said) from error

    def _phases(self, told: dict[str, Any]) -> Mapping[str, float]:
        return {str(name): float(seconds) for name, seconds in told["phases"].items()}

    def _ask(self, method: str, path: str) -> bytes:
        """The body of the answer; of events the first one's data."""
        try:
            self._connection.request(method, self._path + path, headers=self._headers)
            with self._connection.getresponse() as answer:
                if answer.status != 200:
                    raise click.ClickException(self._sentence(answer))
                return _first(answer) if path == "/ui/events" else answer.read(_LONGEST)
        except (OSError, HTTPException) as error:
            raise click.ClickException(
                f"no box answers at {self._url} ({error}): is kybernate serve running there? Its "
                "models.yaml says on which port (listen)"
            ) from error
        finally:
            self._connection.close()

    def _sentence(self, answer: HTTPResponse) -> str:
        text = answer.read(_LONGEST).decode(errors="replace")
        try:
            error = json.loads(text)["error"]
            said = str(error["message"] if isinstance(error, dict) else error)
        except (ValueError, KeyError, TypeError):
            return f"{self._url} answers {answer.status}, as no box does: is --url right?"
        hint = _NEXT.get(answer.status)
        return f"{said.rstrip('.')}; {hint}" if hint else said

    def _is_none(self) -> click.ClickException:
        return click.ClickException(f"{self._url} answers as no box does: is --url right?")


def _first(answer: HTTPResponse) -> bytes:
    """Its data: one line."""
    while line := answer.readline(_LONGEST):
        name, _, data = line.partition(b": ")
        if name == b"data":
            return data
    return b""
