"""The kinds of objects that the controller carries out, each with how it is read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from kybernate import keys
from kybernate.api.rebalances.reading import dump_rebalance, read_rebalance
from kybernate.api.requests import dump_status, read_request
from kybernate.api.restoring.requests import dump_restore, read_restore
from kybernate.core.requests import rebalance
from kybernate.core.requests.checkpoint import Request
from kybernate.core.requests.restore import RestoreRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.requests.reasons import Standing

    Json = dict[str, Any]


class Ask(Protocol):
    """What all kinds have in common."""

    @property
    def uid(self) -> str:
        """The object's UID."""
        ...

    @property
    def namespace(self) -> str:
        """Its namespace."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def status(self) -> Any:
        """How far it is: with `reason`, `message` and `ended_at`."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it."""
        ...

    @property
    def under_way(self) -> bool:
        """Whether something has begun for it that has not ended."""
        ...


class Why(Protocol):
    """A reason of any kind: one word."""

    @property
    def value(self) -> str:
        """The word."""
        ...

    @property
    def standing(self) -> Standing:
        """Whether more becomes of a request with this reason."""
        ...


R = TypeVar("R", bound=Ask)


class Kind(NamedTuple, Generic[R]):
    """One kind. `read` makes a request of an object, and raises ConfigError; `dump` makes the
    object's status of the request's, given what it has, its generation and the time."""

    name: str
    plural: str
    read: Callable[[Mapping[str, Any]], R]
    dump: Callable[[Any, object, int, float], Json]

    def path(self, namespace: str, name: str = "") -> str:
        """Where the API server has an object, or without a name all of a namespace."""
        found = f"/apis/{keys.API_VERSION}/namespaces/{namespace}/{self.plural}"
        return f"{found}/{name}" if name else found


CHECKPOINT: Kind[Request] = Kind(
    keys.CHECKPOINT_REQUEST_KIND, "checkpointrequests", read_request, dump_status
)

REBALANCE: Kind[rebalance.Request] = Kind(
    keys.REBALANCE_REQUEST_KIND, "rebalancerequests", read_rebalance, dump_rebalance
)

RESTORE: Kind[RestoreRequest] = Kind(
    keys.RESTORE_REQUEST_KIND, "restorerequests", read_restore, dump_restore
)

_KINDS: Mapping[type, Kind[Any]] = {
    Request: CHECKPOINT,
    rebalance.Request: REBALANCE,
    RestoreRequest: RESTORE,
}


def kind_of(request: R) -> Kind[R]:
    """The kind of object that it was read from."""
    return _KINDS[type(request)]
