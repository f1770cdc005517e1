"""What agents and the registry say to each other of an object store that only the latter opens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from kybernate.adapters.registry.wire import Id, Message, Namespace, Query, Size

MOST_KEYS = 256
MOST_PACKS = 16

_PART = r"[A-Za-z0-9][-A-Za-z0-9._@]{0,319}"
Key = Annotated[str, StringConstraints(pattern=rf"^{_PART}(/{_PART}){{1,4}}$", max_length=800)]
Prefix = Annotated[str, StringConstraints(pattern=rf"^{_PART}/({_PART}/)?$", max_length=400)]
KeyOrNone = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=800)]
Base64 = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class Reading(Message):
    """Which objects the caller wants to read. `of`: the artifact whose packs they are."""

    keys: list[Key] = Field(min_length=1, max_length=MOST_KEYS)
    of: Id | None = None


class Readable(Message):
    """A URL for each key, in the order of the keys, and for how many seconds they are good."""

    urls: list[str]
    seconds: float


class Packing(Message):
    """How many new packs of the namespace the caller wants to put."""

    namespace: Namespace
    packs: Annotated[int, Field(ge=1, le=MOST_PACKS)]


class NewPack(Message):
    """A name that no pack has, and where it and its index are put, each by PUT."""

    id: str
    pack: str
    index: str


class Packable(Message):
    """For how many seconds the URLs are good; with each PUT go these headers."""

    packs: list[NewPack]
    headers: dict[str, str]
    seconds: float


class Putting(Message):
    """A small object. `create`: only where there is none."""

    key: Key
    data: Base64
    create: bool = False


class Named(Message):
    """Objects that are to go, or one of which something is to be known."""

    keys: list[Key] = Field(min_length=1, max_length=MOST_KEYS)


class Done(Message):
    """It is as was asked for."""

    done: bool = True


class Listing(Query):
    """Objects below a prefix, those after `after`."""

    prefix: Prefix
    after: KeyOrNone = ""


class Seen(Message):
    """An object; `modified` in seconds since 1970, by the store's clock."""

    key: str
    size: Size
    modified: float


class Listed(Message):
    """Some of the objects, in the order of their keys; `next`: what to send as `after`."""

    items: list[Seen]
    next: str | None = None
