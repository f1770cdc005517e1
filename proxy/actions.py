"""What the proxy's decisions speak of: seats as agents describe them, actions, and views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.seat.seats import shown
from kybernate.dataclass import dataclass
from kybernate.types import PodUid

if TYPE_CHECKING:
    from kybernate.types import NodeName, SeatState

NOBODY = PodUid("")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of waiting. `wait` and `lease_break` in seconds, `waiting` in requests per model.

    `first_namespaces`: which namespace a model's plain name leads to where several have it.
    `name_memory`: how long a plain name stays its namespace's once no seat is left (s).
    `bodies` and `client_bodies`: bytes of requests in memory, of all clients and of one.
    `client_wakes` and `namespace_wakes`: wakes a minute; 0 is no limit. `at_seat`: requests at one
    seat at once; 0 is no limit. `registry`: there is one that says whether a pod has taken
    another's place; without one agents are believed.
    """

    wait: float = 60.0
    waiting: int = 256
    lease_break: float = 3.0
    first_namespaces: tuple[str, ...] = ()
    name_memory: float = 3600.0
    bodies: int = 256 * 2**20
    client_bodies: int = 32 * 2**20
    client_wakes: float = 0.0
    namespace_wakes: float = 0.0
    at_seat: int = 0
    registry: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request says about its waiting: at most `patience` seconds, None is as long as others
    may; of its own client's requests those of a higher `priority` come first. `trace`: the
    `traceparent` of its waiting, where it is traced."""

    patience: float | None = None
    priority: int = 0
    trace: str = ""


NO_WISH = Wish()


@dataclass(frozen=True, slots=True)
class Outlook:
    """How long a request has waited, and how much longer it is expected to (s; None: nobody knows);
    `told` says for what."""

    waited: float
    left: float | None
    told: str


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks: a key's or certificate's name, or an address where the proxy asks for neither.

    `namespaces` are those whose models it may ask; None is every one. `known`: by a key or a
    certificate.
    """

    name: str = ""
    namespaces: frozenset[str] | None = None
    known: bool = False

    def may(self, namespace: str) -> bool:
        """Whether it may ask a model of this namespace."""
        return self.namespaces is None or namespace in self.namespaces


ANYONE = Client()
"""Who may ask everything."""


@dataclass(frozen=True, slots=True)
class SeatInfo:
    """A seat as its agent describes it. `address` is `host:port`, empty until it has started.

    `model` is what its pod calls it; another namespace may call its own the same. Of a parked seat:
    `tier` is where its state is, `size` its bytes, and `wake` how long a wake from there is
    expected to take (s; 0.0 is unknown); `measured`: that is what it took the last time, and no
    guess. `awaited`: requests wait for it, here or at other proxies.
    `weight`: of a seat that takes turns; 0.0 of one that waits for requests. `predecessor`: the pod
    that it has taken the place of; empty if of none.

    One whose Deployment is scaled to zero is described so, too: as parked where its state lies.
    """

    uid: PodUid
    node: NodeName
    name: str
    group: str
    pod: str
    model: str
    state: SeatState
    address: str = ""
    reason: str = ""
    wakes: int = 0
    last_wake_ms: float = 0.0
    namespace: str = ""
    tier: str = ""
    size: int = 0
    wake: float = 0.0
    measured: bool = False
    awaited: bool = False
    weight: float = 0.0
    predecessor: PodUid = NOBODY

    @property
    def route(self) -> str:
        """The model's full name, which no other namespace can have."""
        return f"{self.namespace}/{self.model}" if self.namespace and self.model else self.model

    @property
    def told(self) -> str:
        """Its state, and if it is parked where, for people."""
        return f"{shown(self.state)} in {self.tier}" if self.tier else shown(self.state)


@dataclass(frozen=True, slots=True)
class Serve:
    """Send the request to the seat now. `held` is how long it waited (s)."""

    ticket: int
    seat: SeatInfo
    generation: int
    held: float


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer the request with this status and sentence.

    `retry_after` in seconds; 0.0 leaves it to the settings.
    """

    ticket: int
    status: int
    code: str
    reason: str
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request that is in flight."""

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The seat's demand changed; tell its agent, at once if urgent."""

    node: NodeName
    uid: PodUid
    urgent: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing is in flight on this lease any more; close idle connections, then tell the agent."""

    node: NodeName
    uid: PodUid
    generation: int


@dataclass(frozen=True, slots=True)
class Close:
    """No lease covers the seat any more; close all connections to it."""

    uid: PodUid


@dataclass(frozen=True, slots=True)
class CheckAt:
    """Call `Admission.tick` at this time."""

    at: float


@dataclass(frozen=True, slots=True)
class Rouse:
    """Somebody waits for this model, whose Deployment is scaled to zero: have it scaled up."""

    model: str


@dataclass(frozen=True, slots=True)
class Verify:
    """This node's agent says that its seat's pod, `uid`, has taken the place of the pod
    `predecessor` of the same namespace: ask the registry."""

    node: NodeName
    namespace: str
    uid: PodUid
    predecessor: PodUid


Action = Serve | Reject | Abort | Report | Drained | Close | CheckAt | Rouse | Verify


@dataclass(frozen=True, slots=True)
class DemandView:
    """What an agent is told about one of its seats. `oldest_wait` in seconds, and the trace of who
    waits so long."""

    in_flight: int
    waiting: int
    oldest_wait: float
    requests: int
    trace: str = ""


@dataclass(frozen=True, slots=True)
class SeatView:
    """One seat as the proxy sees it now, for people and metrics."""

    info: SeatInfo
    connected: bool
    granted: bool
    in_flight: int
    waiting: int
