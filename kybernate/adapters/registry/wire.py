"""What is sent to the registry and what it answers: JSON, one model for each kind of body.

The registry serves its OpenAPI document from these models, and its callers build and read them.
Times are milliseconds since 1970 in UTC, sizes are bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from kybernate.types import Tier

_MOST_FACTS = 64
_LONGEST_LEASE_S = 86_400
LARGEST = 2**53 - 1
"""The largest number that every reader of JSON takes exactly."""

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_SAVED = rf"{_LABEL}(\.{_LABEL})*@[0-9]{{8}}T[0-9]{{6}}Z-[0-9a-f]{{8}}"

Namespace = Annotated[str, StringConstraints(pattern=rf"^{_LABEL}$", max_length=63)]
Name = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=253)]
NodeOrNone = Annotated[str, StringConstraints(pattern=rf"^({_NAME})?$", max_length=253)]
Uid = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][-0-9A-Za-z]{0,127}$")]
Saved = Annotated[str, StringConstraints(pattern=rf"^{_SAVED}$", max_length=320)]
"""An artifact's ID after its namespace and the slash."""

Id = Annotated[str, StringConstraints(pattern=rf"^{_LABEL}/{_SAVED}$", max_length=384)]
After = Annotated[
    str, StringConstraints(pattern=rf"^[0-9]{{1,15}}:{_LABEL}/{_SAVED}$", max_length=400)
]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=512)]
Why = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=512)]
Size = Annotated[int, Field(ge=0, le=LARGEST)]
Time = Annotated[int, Field(ge=0, le=LARGEST)]
Token = Annotated[int, Field(ge=1, le=LARGEST)]
Fact = Text | Annotated[int, Field(ge=-LARGEST, le=LARGEST)] | float | bool | None


CONTENT = "content"
"""The fact that is the hash of what an artifact's files hold (`manifest.content`); 0.2.0 told none.
Among the facts, since that release takes no field that it doesn't know, and any fact."""
PERSON_HOLD = "person_hold"
"""The fact that is the tier in which people keep an artifact's copy: `object`, as the pod's own
node says. Releases up to 0.2.0 told none."""


class CopyState(StrEnum):
    """What is known of a copy of an artifact in a place."""

    PENDING = "pending"
    """It is on its way there, or nobody has read it back yet."""
    VERIFIED = "verified"
    """Its bytes were read back from there and are those of the manifest."""
    MISSING = "missing"
    """It was there, and is lost or corrupt."""


class Proof(StrEnum):
    """How it is known that a pod has stopped."""

    AGENT = "agent"
    """The agent of its node says that it ended the pod's processes, or that they are given up."""
    DELETED = "deleted"
    """The API server has no pod of this UID any more."""
    OUT_OF_SERVICE = "out-of-service"
    """Its node has the taint that says that it is off."""
    KNOWN_BEFORE = "known-before"
    """A claim of before the database was lost was told again: it was given on proof then."""


class Message(BaseModel):
    """Nothing unknown, nothing converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Spot(Message):
    """Where a copy is: `node` has it in a local place, `store` is the URL of an object store."""

    place: Tier
    node: NodeOrNone = ""
    store: Text = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> Spot:
        if self.place is Tier.OBJECT and (self.node or not self.store):
            raise ValueError("an object store's copy has a store and no node")
        if self.place is not Tier.OBJECT and (self.store or not self.node):
            raise ValueError(f"a copy in {self.place} has a node and no store")
        return self


class Copy(Spot):
    """A copy of an artifact. `size`: bytes that it takes there."""

    state: CopyState
    size: Size = 0


class KnownCopy(Copy):
    """A copy as the registry knows it; `told_ms` is when it was last heard of.

    It is 0 for one that a rebuild found: its manifest is there, and counts as verified for those
    who want to restore, but not as a reason to drop another.
    """

    told_ms: Time


class Described(Message):
    """What an artifact's manifests say, as far as the registry keeps it.

    `digest` is the hash of what they all say, in whatever form a place keeps it: the same artifact
    always has the same. `facts` are those that a restore must match.
    """

    digest: Hash
    pod: Name
    pod_uid: Uid
    container: Text = ""
    model: Text = ""
    size: Size
    created_ms: Time
    parent: Id | None = None
    facts: dict[Annotated[str, StringConstraints(max_length=64)], Fact] = Field(
        default_factory=dict, max_length=_MOST_FACTS
    )


class Recording(Message):
    """An artifact that exists from now on, and its first copy, by the writer with the lease."""

    artifact: Described
    held: Copy
    token: Token


class CopyReport(Message):
    """What became of a copy of the artifact with this digest."""

    digest: Hash
    held: Copy


class Entry(Described):
    """An artifact as the registry knows it; lists leave the facts out."""

    id: Id
    namespace: Namespace
    recorded_ms: Time
    copies: list[KnownCopy]


class Signers(Message):
    """The nodes that wrote an artifact with this digest, and so may have signed it; the newest
    fencing token that one of them had then, 0 if that isn't known any more."""

    digest: Hash
    nodes: list[str]
    token: Size


class Page(Message):
    """Artifacts, newest first; `next` is what to send as `after` for the next ones."""

    items: list[Entry]
    next: str | None = None


class Dropped(Message):
    """`copies` are left; with none the artifact is forgotten, too."""

    dropped: bool
    copies: int


Seconds = Annotated[float, Field(gt=0, le=_LONGEST_LEASE_S)]


class LeaseWish(Message):
    """`runs`: the pod runs on the caller's node, whose agent alone can say then that it stopped."""

    seconds: Seconds
    runs: bool = True


class Renewal(Message):
    """The lease with this token continues."""

    seconds: Seconds
    token: Token


class Stop(Message):
    """A pod has stopped, and how that is known."""

    proof: Proof
    why: Why


class Claim(Message):
    """`successor`, a pod's UID on `node`, is to continue with the pod's state from this artifact.

    `version`: that of the pod that the claim was decided on. `again`: the claim was granted
    before the registry lost its database. `older`: the artifact is meant, though the pod has a
    newer one; no agent may say so.
    """

    artifact: Id
    successor: Uid
    node: Name
    version: Size | None = None
    again: bool = False
    older: bool = False


class Settlement(Message):
    """Why nobody can hold a claim that the registry does not know."""

    why: Why


class Settled(Message):
    """How many pods are claimable again."""

    pods: int


class Pod(Message):
    """What the registry knows of a pod: who may write its state, and who continues with it.

    `version` grows with each change. `node` is where the pod runs, as its agent says. `token` is
    the newest that was given; `holder` is the node that has it, until `until_ms`. `stopped` is the
    proof. `successor`, if any, holds the claim. `settled`: all claims on this pod are known.
    `ended`: its predecessor's state was given to another, so nobody continues from this one's.
    """

    namespace: Namespace
    uid: Uid
    version: Size = 0
    node: str = ""
    token: Size = 0
    holder: str = ""
    until_ms: Time = 0
    stopped: Proof | None = None
    stopped_by: str = ""
    stopped_why: str = ""
    successor: str = ""
    successor_node: str = ""
    artifact: str = ""
    settled: bool = True
    ended: bool = False


class Error(BaseModel):
    """What is wrong, and what to do instead."""

    error: str


class Query(BaseModel):
    """Parameters of a request's URL: texts, read as what they stand for."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Filter(Query):
    """Which artifacts to list. With `node`, `place` or `state`: those with such a copy. `newest`:
    so many of each namespace at most, of all namespaces."""

    namespace: Namespace | None = None
    model: Text | None = None
    pod: Name | None = None
    pod_uid: Uid | None = None
    node: Name | None = None
    place: Tier | None = None
    state: CopyState | None = None
    newest: Annotated[int, Field(ge=1, le=10_000)] | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    after: After | None = None

    @model_validator(mode="after")
    def _newest_of_all(self) -> Filter:
        if self.newest is not None and self.model_fields_set - {"newest", "limit", "after"}:
            raise ValueError("newest is of all namespaces; leave the other conditions out")
        return self


class Latest(Query):
    """Whose newest artifact is meant. Without `any`: the newest that has a verified copy."""

    namespace: Namespace
    pod: Name | None = None
    pod_uid: Uid | None = None
    model: Text | None = None
    any: bool = False

    @model_validator(mode="after")
    def _of_something(self) -> Latest:
        if not (self.pod or self.pod_uid or self.model):
            raise ValueError("name a pod, a pod_uid or a model")
        return self


class Drop(Query):
    """Which copy to drop. `forget`: why nobody needs the artifact's last verified copy."""

    place: Tier
    node: NodeOrNone = ""
    store: Text = ""
    forget: Text = ""


class OfToken(Query):
    """The lease with this token."""

    token: Token


class OfSuccessor(Query):
    """The claim of this successor."""

    successor: Uid


class Nothing(Query):
    """No parameters."""


def as_json(message: BaseModel) -> dict[str, Any]:
    """A message as JSON has it."""
    return message.model_dump(mode="json")
