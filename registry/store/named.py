"""What pods on a node name to continue from, so that their node may read it before any claim."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.core.artifacts import layout
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.artifacts.restores import RestoreWish
    from kybernate.types import ArtifactId
    from registry.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Named:
    """What the pods that the extender placed on a node name: pods by UID, artifacts, and pods that
    SnapshotTemplates had made, by their names without the number. `unknown`: why more may be named,
    in a sentence."""

    pods: frozenset[str] = frozenset()
    artifacts: frozenset[str] = frozenset()
    builds: frozenset[str] = frozenset()
    unknown: str = ""

    def has(self, artifact: str, uid: str) -> bool:
        """Whether this artifact of the pod `uid` is named."""
        if artifact in self.artifacts or uid in self.pods:
            return True
        build, number = _build(artifact)
        return build in self.builds and number.isdigit()


def named_nothing(_node: str, _namespace: str) -> Named:
    """What pods name where no cluster tells."""
    return Named()


def read_named(
    cluster: Cluster, templates: Callable[[str, str], ArtifactId], node: str, namespace: str
) -> Named:
    """What the namespace's pods on the node name. `templates`: see `SnapshotTemplates.artifact`."""
    try:
        wishes = [pod.wish for pod in cluster.placed(node, namespace) if pod.wish is not None]
    except RetryableError as error:
        return Named(unknown=str(error))
    builds, unknown = _builds(wishes, templates, namespace)
    return Named(
        frozenset(wish.uid for wish in wishes if wish.uid),
        frozenset(wish.artifact for wish in wishes if wish.namespace(namespace) == namespace),
        frozenset(builds - {""}),
        unknown,
    )


def _builds(
    wishes: list[RestoreWish], templates: Callable[[str, str], ArtifactId], namespace: str
) -> tuple[set[str], str]:
    """Whatever a template was made of before stays named: a pod may still lie in that."""
    found, unknown = set(), ""
    for wish in wishes:
        try:
            with suppress(NotFoundError, RefusedError):
                if wish.template:
                    found.add(_build(templates(namespace, wish.template))[0])
        except RetryableError as error:
            unknown = str(error)
    return found, unknown


def _build(artifact: str) -> tuple[str, str]:
    """Of an artifact of a template: the name of what it was made in, without its number, and that
    number. Raises RefusedError."""
    name, _, number = layout.parse_id(artifact).name.rpartition("-")
    return name, number
