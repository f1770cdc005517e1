"""The kinds of objects that the controller carries out, each with how it is read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kybernate import keys
from kybernate.api.rebalances.reading import dump_rebalance, read_rebalance
from kybernate.api.requests import dump_status, read_request
from kybernate.api.restoring.requests import dump_restore, read_restore
from kybernate.core.requests import rebalance
from kybernate.core.requests.asked import Asked
from kybernate.core.requests.checkpoint import Request
from kybernate.core.requests.restore import RestoreRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Json = dict[str, Any]


R = TypeVar("R", bound=Asked)


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
