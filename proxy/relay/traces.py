"""What is traced of a request. `proxy.relay.spans` does it; without it nothing is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from proxy.actions import Serve


class Trace:
    """One request's, where nobody traces: its headers pass as they are."""

    def waits(self) -> str:
        """It is whole, and asks for a seat. The `traceparent` of its waiting, empty for none."""
        return ""

    def served(self, serve: Serve) -> None:
        """A seat may have it."""

    def asks(self, headers: MutableMapping[str, str]) -> None:
        """It goes to the seat with these headers."""

    def begins(self, status: int) -> None:
        """The answer begins."""

    def over(self, model: str, status: int) -> None:
        """All is said, or the client has gone."""


class Traces(Protocol):
    """Traces requests."""

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> Trace:
        """A request has come."""

    def close(self) -> None:
        """Send what is left, for a short while at most. Blocks."""


NO_TRACE = Trace()


class NoTraces:
    """Implements `Traces`."""

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> Trace:
        """See `Traces`."""
        return NO_TRACE

    def close(self) -> None:
        """See `Traces`."""
