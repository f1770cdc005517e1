"""The kube-scheduler's extender protocol: JSON to types and back. Pure.

The keys are Go's field names, since the upstream types carry no JSON tags; the pods and nodes
inside are ordinary Kubernetes objects. Whatever has another shape raises RefusedError naming
the field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kybernate.dataclass import dataclass
from kybernate.errors import RefusedError
from kybernate.types import NodeName, PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kybernate.core.placement.verdicts import Fits

    Json = dict[str, Any]

T = TypeVar("T", bound=object)


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """A pod and the nodes to consider; `whole` holds the Node objects if those were sent."""

    pod: Json
    names: Sequence[NodeName]
    whole: tuple[Json, ...] | None


@dataclass(frozen=True, slots=True)
class BindArgs:
    """The pod to bind, and where to."""

    pod: PodRef
    node: NodeName


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods that would be deleted on one node."""

    uids: tuple[PodUid, ...]
    pdb_violations: int


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """The pod that needs room, and the victims proposed per node."""

    pod: Json
    victims: Mapping[NodeName, Victims]


def read_filter(body: object) -> FilterArgs:
    """Read the request of `filter` or `prioritize`."""
    args = _typed(body, dict, "the body")
    pod = _pod(args)
    names, nodes = args.get("NodeNames"), args.get("Nodes")
    if names is not None:
        return FilterArgs(pod, _node_names(names), None)
    if nodes is None:
        raise RefusedError("NodeNames and Nodes: one of them must list the nodes to consider")
    items = _typed(_typed(nodes, dict, "Nodes").get("items") or [], list, "Nodes.items")
    whole = tuple(_typed(item, dict, "Nodes.items[]") for item in items)
    return FilterArgs(pod, tuple(_node_name(item) for item in whole), whole)


def _node_names(names: object) -> list[NodeName]:
    listed: list[NodeName] = _typed(names, list, "NodeNames")
    # A look at each of thousands of names would cost more than all else that filter does.
    try:
        joined = "\n".join(["", *listed, ""])
    except TypeError:
        joined = "\n\n"
    if "\n\n" in joined:
        return [NodeName(_text(name, "NodeNames[]")) for name in listed]
    return listed


def read_bind(body: object) -> BindArgs:
    """Read the request of `bind`."""
    args = _typed(body, dict, "the body")
    namespace, name, uid, node = (
        _text(args.get(key), key) for key in ("PodNamespace", "PodName", "PodUID", "Node")
    )
    return BindArgs(PodRef(namespace, name, PodUid(uid)), NodeName(node))


def read_preempt(body: object) -> PreemptArgs:
    """Read the request of `preempt`, with victims as UIDs or as whole pods."""
    args = _typed(body, dict, "the body")
    key = "NodeNameToMetaVictims"
    if args.get(key) is None:
        key = "NodeNameToVictims"
    nodes = _typed(args.get(key) or {}, dict, key)
    victims = {
        NodeName(node): _victims(entry, f"{key}[{node}]", whole=key == "NodeNameToVictims")
        for node, entry in nodes.items()
    }
    return PreemptArgs(_pod(args), victims)


def filter_answer(args: FilterArgs, result: Fits) -> Json:
    """The answer of `filter`, with names or whole nodes as they were asked for."""
    nodes = None
    if args.whole is not None:
        passed = set(result.passed)
        items = [item for item in args.whole if _node_name(item) in passed]
        nodes = {"apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": items}
    return {
        "Nodes": nodes,
        "NodeNames": None if args.whole is not None else result.passed,
        "FailedNodes": result.failed,
        "FailedAndUnresolvableNodes": result.hopeless,
        "Error": "",
    }


def prioritize_answer(names: Sequence[NodeName], scores: Sequence[int]) -> list[Json]:
    """The answer of `prioritize`; scores are 0 to 10, one per name."""
    return [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]


def bind_answer(error: str) -> Json:
    """The answer of `bind`; an empty sentence is success."""
    return {"Error": error}


def preempt_answer(victims: Mapping[NodeName, Victims]) -> Json:
    """The answer of `preempt`."""
    return {
        "NodeNameToMetaVictims": {
            node: {
                "Pods": [{"UID": uid} for uid in entry.uids],
                "NumPDBViolations": entry.pdb_violations,
            }
            for node, entry in victims.items()
        }
    }


def _victims(entry: object, where: str, *, whole: bool) -> Victims:
    body = _typed(entry, dict, where)
    pods = _typed(body.get("Pods") or [], list, f"{where}.Pods")
    uids = (_victim(pod, f"{where}.Pods[]", whole=whole) for pod in pods)
    count = body.get("NumPDBViolations") or 0
    return Victims(tuple(uids), _typed(count, int, f"{where}.NumPDBViolations"))


def _victim(pod: object, where: str, *, whole: bool) -> PodUid:
    body = _typed(pod, dict, where)
    if whole:
        meta = _typed(body.get("metadata"), dict, f"{where}.metadata")
        return PodUid(_text(meta.get("uid"), f"{where}.metadata.uid"))
    return PodUid(_text(body.get("UID"), f"{where}.UID"))


def _pod(args: Json) -> Json:
    pod = _typed(args.get("Pod"), dict, "Pod")
    meta = _typed(pod.get("metadata"), dict, "Pod.metadata")
    _text(meta.get("uid"), "Pod.metadata.uid")
    for name, text in _typed(
        meta.get("annotations") or {}, dict, "Pod.metadata.annotations"
    ).items():
        _typed(text, str, f"Pod.metadata.annotations[{name}]")
    return pod


def _node_name(node: Json) -> NodeName:
    meta = _typed(node.get("metadata"), dict, "Nodes.items[].metadata")
    return NodeName(_text(meta.get("name"), "Nodes.items[].metadata.name"))


def _text(value: object, where: str) -> str:
    text = _typed(value, str, where)
    if not text:
        raise RefusedError(f"{where}: must not be empty")
    return text


def _typed(value: object, kind: type[T], where: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = "nothing" if value is None else type(value).__name__
        raise RefusedError(f"{where}: must be {_KINDS[kind]}, got {found}")
    return value


_KINDS: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
}
