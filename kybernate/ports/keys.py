"""Who wraps keys: a system for which nobody outside it knows its own keys, or a mounted Secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kybernate.core.artifacts.keyobjects import NamespaceKey


class Wraps(Protocol):
    """Wraps the data keys of namespaces' places. Any thread may call; calls block, each for a
    limited time, and raise RetryableError while what they need can't be had."""

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        """(ID of the key, the secret wrapped), to be opened for this namespace alone."""
        ...

    def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
        """The secret. Raises RefusedError if it can't be opened for this namespace, ever;
        LockedError if the key that opens it is missing."""
        ...

    def own(self, by: str) -> NamespaceKey:
        """The namespace's own key of this ID, sealed, as it is laid beside what it has wrapped;
        an empty one if the key is none."""
        ...


class Kms(Protocol):
    """Wraps secrets of a few bytes by keys of its own, of which the newest wraps new ones.

    Calls block, each for a limited time. They raise RetryableError while it can't be reached, and
    ConfigError if it is not set up as it must be. Any thread may call.
    """

    @property
    def newest(self) -> str:
        """The ID of the key that wraps new secrets, empty if there is none."""
        ...

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        """(ID of the key, the secret wrapped), to be opened for `bound_to` alone."""
        ...

    def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
        """The secret. Raises RefusedError if it can't be opened for `bound_to` by that key,
        RetryableError where there is no such key."""
        ...

    def renew(self) -> str:
        """Make a key that wraps what comes from now on, and give its ID; those of before stay.

        Raises ConfigError where keys are made by other means, saying how.
        """
        ...
