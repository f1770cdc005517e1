"""What is said of namespaces' keys: like `wire`, for those calls."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from kybernate.adapters.registry.wire import Message, Namespace, Size, Text, Time, Uid, Why

KeyId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{2,64}$")]
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{2,1024}$")]


class KeyWish(Message):
    """The namespace's own key, for a pod that runs on the caller's node, by its lease or claim.

    `id`: this one, else the one for new data keys. `wrapped`: a data key that `id` has wrapped, of
    a release before 0.2.0; it is opened instead. `pod_namespace` is the pod's where it is another
    one, whose pods an ArtifactGrant lets have `artifact`: by `id` and `wrapped` it names the data
    key, which alone it gets. The controller names no pod.
    """

    pod: Uid | None = None
    pod_namespace: Namespace | None = None
    artifact: Text = ""
    id: KeyId | None = None
    wrapped: Hex | None = None


class SealedKey(Message):
    """The namespace's own key as it lies in places: wrapped by `by`."""

    id: KeyId
    uid: Text
    made_ms: Time
    by: KeyId
    wrapped: Hex


class GivenKey(Message):
    """`key`: 32 bytes in hexadecimal: the namespace's own, with `sealed`; or the data key that was
    to be opened. `uid`: the namespace's. `seconds`: how long the node may continue with it."""

    namespace: Namespace
    uid: Text
    key: Hex
    sealed: SealedKey | None = None
    seconds: Annotated[float, Field(gt=0)]


class ShredWish(Message):
    """Destroy the keys of the namespace, or of that with this UID, `seconds` from now. `cancel`:
    don't, where that isn't done yet. `dry_run`: only say what would be done."""

    why: Why
    uid: Uid | None = None
    seconds: Annotated[float, Field(ge=0, le=31_536_000)] | None = None
    cancel: bool = False
    dry_run: bool = False


class KnownKey(Message):
    """A namespace's own key. `shred_ms`: when it is to be destroyed, 0 for never; `shredded_ms`:
    when it was."""

    id: KeyId
    uid: Text
    made_ms: Time
    by: Text
    shred_ms: Time = 0
    shredded_ms: Time = 0
    why: Text = ""


class Keys(Message):
    """All keys that a namespace of this name has, or had; `changed`: how many of them by this."""

    namespace: Namespace
    uid: Text
    keys: list[KnownKey]
    changed: Size = 0
