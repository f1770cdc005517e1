"""Objects that count as long as they are there: policies, shares and templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.base.cluster import Cluster
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

T = TypeVar("T")


class Lasting(NamedTuple, Generic[T]):
    """An object that counts as long as it is there, as it was last seen. `says` is None if that
    can't be, which `wrong` tells; `status`: what the API server has of it."""

    says: T | None
    wrong: str
    path: str
    uid: str
    version: str
    generation: int
    status: object


def read_lasting(path: str, item: Json, read: Callable[[Json], T]) -> Lasting[T]:
    """One of those that all together have this path; `read` raises ConfigError."""
    meta, says, wrong = item["metadata"], None, ""
    try:
        says = read(item)
    except ConfigError as error:
        wrong = str(error)
    group, _, plural = path.rpartition("/")
    place = f"namespaces/{meta['namespace']}/{plural}" if "namespace" in meta else plural
    path = f"{group}/{place}/{meta['name']}"
    version, generation = str(meta["resourceVersion"]), int(meta.get("generation") or 1)
    return Lasting(says, wrong, path, str(meta["uid"]), version, generation, item.get("status"))


def write_lasting(cluster: Cluster, known: Lasting[Any], status: Json, fence: Fence) -> Json | None:
    """Write an object's status, and return the object as it is then; None if it has it already."""
    if _merged(status) == _merged(known.status):
        return None
    fence.check()
    return cluster.write_status(known.path, known.version, status)


def _merged(status: object) -> object:
    """A status without what a merge takes away."""
    if not isinstance(status, dict):
        return status
    return {name: _merged(value) for name, value in status.items() if value is not None}
