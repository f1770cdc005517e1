"""`kubectl kyb doctor`: what the API server has of a cluster, for the findings of `core.doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kybernate import keys
from kybernate.api.crds import CRDS
from kybernate.api.gpunodes import read_status
from kybernate.api.lenient import mapping, mappings, text
from kybernate.cli.cluster.link import NODES, Source, listed
from kybernate.core.doctor.cluster import ClusterFacts, NodeFacts, Published
from kybernate.core.doctor.nodefacts import Unseen
from kybernate.errors import ConfigError, KybernateError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from kybernate.api.gpunodes import Status

    Json = dict[str, Any]

T = TypeVar("T")

DRIVER = "gpu.nvidia.com"
"""The DRA driver that publishes whole GPUs."""

_SERVICES = f"/apis/apps/v1/namespaces/{keys.NAMESPACE}/deployments"
_WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kyb-webhook"
_SLICES = (
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1beta1/resourceslices",
)


def gather(api: Api) -> ClusterFacts:
    """All facts; what this account may not see is unseen. Raises RetryableError without an API
    server."""
    return ClusterFacts(
        missing_kinds=tuple(_missing(api)),
        services=_seen(lambda: _services(api)),
        webhook=_seen(lambda: _webhook(api)),
        nodes=_seen(lambda: _nodes(api)),
        slices=_seen(lambda: _slices(api)),
    )


def _seen(look: Callable[[], T]) -> T | Unseen:
    try:
        return look()
    except KybernateError as error:
        return Unseen(str(error))


def _missing(api: Api) -> Iterator[str]:
    group = mapping(_or_nothing(api, f"/apis/{keys.API_VERSION}"))
    served = {text(one.get("name")) for one in mappings(group.get("resources"))}
    yield from (crd.resource for crd in CRDS.values() if crd.resource not in served)


def _services(api: Api) -> dict[str, bool]:
    """Empty deployments count as ready: nobody wants them."""
    return {
        f"deploy/{one['metadata']['name']}": bool(
            mapping(one.get("status")).get("readyReplicas") or one["spec"].get("replicas") == 0
        )
        for one in listed(api, Source(_SERVICES, {}))
    }


def _webhook(api: Api) -> bool:
    hooks = mappings(_or_nothing(api, _WEBHOOK).get("webhooks"))
    return bool(hooks) and all(mapping(one.get("clientConfig")).get("caBundle") for one in hooks)


def _nodes(api: Api) -> dict[str, NodeFacts]:
    told = dict(_statuses(api))
    nodes = {str(one["metadata"]["name"]): one for one in listed(api, Source("/api/v1/nodes", {}))}
    return {name: _node(nodes.get(name, {}), told.get(name)) for name in sorted({*nodes, *told})}


def _statuses(api: Api) -> Iterator[tuple[str, Status | None]]:
    try:
        items = listed(api, NODES)
    except NotFoundError:
        return
    for item in items:
        try:
            yield read_status(item)
        except ConfigError:
            yield str(item["metadata"]["name"]), None


def _node(item: Json, status: Status | None) -> NodeFacts:
    labels = mapping(mapping(item.get("metadata")).get("labels"))
    allocatable = mapping(mapping(item.get("status")).get("allocatable"))
    offered = text(allocatable.get(keys.VENDOR_RESOURCE))
    ready = (
        next((one for one in status.conditions if one.type == "Ready"), None) if status else None
    )
    return NodeFacts(
        ours=labels.get(keys.GPU_NODE_LABEL) == "true",
        gpus=frozenset(gpu.uuid for gpu in status.gpus) if status else None,
        problem=ready.message if ready and ready.status != "True" else "",
        version=status.agent.version if status and status.agent else "",
        vendor=int(offered) if offered.isdigit() else 0,
    )


def _slices(api: Api) -> tuple[Published, ...]:
    """Of this driver; nothing where the cluster has no such objects."""
    for path in _SLICES:
        try:
            items = listed(api, Source(path, {"fieldSelector": f"spec.driver={DRIVER}"}))
        except NotFoundError:
            continue
        return tuple(_published(mapping(item.get("spec"))) for item in items)
    return ()


def _published(spec: Json) -> Published:
    devices = tuple(_uuid(one) for one in mappings(spec.get("devices")))
    return Published(text(spec.get("driver")), text(spec.get("nodeName")), devices)


def _uuid(device: Json) -> str | None:
    # Before resource.k8s.io/v1 the attributes lay one deeper.
    attributes = mapping(device.get("attributes") or mapping(device.get("basic")).get("attributes"))
    found = mapping(attributes.get("uuid") or attributes.get(f"{DRIVER}/uuid")).get("string")
    return text(found) or None


def _or_nothing(api: Api, path: str) -> Json:
    try:
        return api.get(path)
    except NotFoundError:
        return {}
