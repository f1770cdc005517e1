"""The objects `keys/<namespace>/<number>` of a place: a namespace's data key there, and with it the
namespace's own key, which opens it. Pure.

A namespace's own key is told by an ID, belongs to the namespace's UID, and is wrapped by a key
management system. So whoever lost all but the place and that system has all keys; and who destroys
the own key, wherever it lies wrapped, has destroyed what all data keys below it encrypt.
"""

from __future__ import annotations

from dataclasses import replace

from kybernate.core.artifacts import codec
from kybernate.core.artifacts.manifest import DataKey
from kybernate.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class NamespaceKey:
    """A namespace's own key, `wrapped` by the key `by`. `uid`: the namespace's, empty where nobody
    can tell it. `made_ms`: when, in milliseconds since 1970."""

    id: str = ""
    uid: str = ""
    made_ms: int = 0
    by: str = ""
    wrapped: str = ""

    def bound_to(self, namespace: str) -> str:
        """What it is wrapped for: no other namespace's key can stand in for it."""
        return f"{namespace}/{self.uid}/{self.id}"


@dataclass(frozen=True, slots=True)
class KeyObject:
    """A data key, `wrapped` by the key `by`: the namespace's own, which is `of`, or, where that is
    empty, one of a key management system, as releases before 0.2.0 have it."""

    number: int
    by: str
    wrapped: str
    of: NamespaceKey = NamespaceKey()

    @property
    def data_key(self) -> DataKey:
        """As manifests have it."""
        return DataKey(self.number, self.by, self.wrapped)

    def with_own(self, own: NamespaceKey) -> KeyObject:
        """The same data key, beside the own key as it is wrapped now."""
        return replace(self, of=own)


def encode(key: KeyObject) -> bytes:
    """As JSON; what `decode` reads. 0.1.0 reads those that no namespace's own key wraps."""
    return codec.encode(key, () if key.of.id else ("of",))


def decode(data: bytes, what: str) -> KeyObject:
    """The object. Raises CorruptError, naming the field."""
    return codec.decode(KeyObject, data, what)
