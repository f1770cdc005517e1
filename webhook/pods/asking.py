"""Reading what a pod asks for: which container wants how many GPUs, and what is wrong with it.

Pure: a pod is the plain JSON of the API server. Sentences say what to write instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.core.quantity import parse_quantity
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json = dict[str, Any]

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Kubernetes' own annotation for the container that is meant when none is named."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A seat on `gpus` GPUs, wanted by the container at `index` of spec.containers."""

    index: int
    gpus: int

    @property
    def resource(self) -> str:
        """The seat's resource."""
        return keys.seat_resource(self.gpus)


def annotations_of(pod: Json) -> dict[str, str]:
    """The pod's annotations, empty if it has none."""
    return pod.get("metadata", {}).get("annotations") or {}


def adopt_short_names(pod: Json) -> None:
    """Write the annotation that is known without our prefix under its whole name, too."""
    present = annotations_of(pod)
    if keys.SHORT_PREFER_GROUP in present and keys.PREFER_GROUP not in present:
        full = {keys.PREFER_GROUP: present[keys.SHORT_PREFER_GROUP]}
        pod["metadata"]["annotations"] = {**present, **full}


def is_labelled(pod: Json) -> bool:
    """Whether the pod opts in by the label."""
    labels = pod.get("metadata", {}).get("labels") or {}
    return bool(labels.get(keys.MANAGED_LABEL) == "true")


def concerns_us(pod: Json) -> bool:
    """Whether we have a say: the label, a resource of ours in any container, or the annotation."""
    if is_labelled(pod) or keys.GPUS_ANNOTATION in annotations_of(pod):
        return True
    return any(_ours(container) for _, container in all_containers(pod))


def hides_gpus(container: Json) -> bool:
    """Whether the container says itself that the vendor's runtime is to give it no GPU.

    What `env` says wins over `envFrom` and over the image.
    """
    said = [one for one in container.get("env") or () if one["name"] == keys.ENV_NVIDIA_VISIBLE]
    return bool(said) and all(one.get("value") == keys.NO_GPUS for one in said)


def all_containers(pod: Json) -> Iterator[tuple[str, Json]]:
    """Every container with the list that holds it: `initContainers` or `containers`."""
    for field in ("initContainers", "containers"):
        for container in pod["spec"].get(field) or ():
            yield field, container


def amounts(container: Json, field: str) -> dict[str, str]:
    """The container's `limits` or `requests`, values as text."""
    resources = container.get("resources") or {}
    return {name: str(value) for name, value in (resources.get(field) or {}).items()}


def read_ask(pod: Json) -> tuple[Ask | None, list[str]]:
    """What the pod asks for and what is wrong with how it asks; without sentences, it is right.

    For a pod that concerns us there is an Ask or a sentence.
    """
    problems = [*_init_problems(pod), *_annotation_problems(pod), *_label_problems(pod)]
    found: list[Ask] = []
    for index, container in enumerate(pod["spec"]["containers"]):
        ask, wrong = _read_container(index, container)
        problems += wrong
        found += [ask] if ask else []
    if len(found) > 1:
        names = " and ".join(pod["spec"]["containers"][ask.index]["name"] for ask in found)
        problems.append(
            f"Containers {names} each ask for GPUs, but a pod has one seat; "
            "put the GPU work into one container, or into several pods."
        )
    if problems:
        return None, problems
    ask = found[0] if found else None
    return _with_annotation(pod, ask)


def _with_annotation(pod: Json, ask: Ask | None) -> tuple[Ask | None, list[str]]:
    text = annotations_of(pod).get(keys.GPUS_ANNOTATION)
    if text is None:
        return (ask, []) if ask else (None, [_NOTHING_ASKED])
    if ask is None:
        return _by_annotation(pod, int(text))
    if ask.gpus != int(text):
        problem = (
            f"{keys.GPUS_ANNOTATION} says {text}, but a container asks for {ask.resource}; "
            "leave the annotation out."
        )
        return None, [problem]
    return ask, []


_NOTHING_ASKED = (
    f'The label {keys.MANAGED_LABEL}: "true" needs a container with a limit of '
    f"{keys.seat_resource(1)} or {keys.VENDOR_RESOURCE}; add one, or remove the label."
)


def _by_annotation(pod: Json, gpus: int) -> tuple[Ask | None, list[str]]:
    names = [container["name"] for container in pod["spec"]["containers"]]
    if len(names) == 1:
        return Ask(0, gpus), []
    default = annotations_of(pod).get(DEFAULT_CONTAINER)
    if default in names:
        return Ask(names.index(default), gpus), []
    problem = (
        f"{keys.GPUS_ANNOTATION} doesn't say which of {', '.join(names)} gets the GPUs; "
        f"name it in {DEFAULT_CONTAINER}, or set a limit of {keys.seat_resource(gpus)} in it."
    )
    return None, [problem]


def _annotation_problems(pod: Json) -> list[str]:
    text = annotations_of(pod).get(keys.GPUS_ANNOTATION)
    if text is None:
        return []
    problems = []
    if not is_labelled(pod):
        problems.append(
            f"{keys.GPUS_ANNOTATION} has an effect only on pods with the label "
            f'{keys.MANAGED_LABEL}: "true"; add the label, or remove the annotation.'
        )
    if keys.seat_resource_size(f"{keys.RESOURCE_PREFIX}{text}{keys.RESOURCE_SUFFIX}") is None:
        problems.append(
            f"{keys.GPUS_ANNOTATION} is {text!r}; write a whole number of GPUs, such as 2."
        )
    return problems


def _label_problems(pod: Json) -> list[str]:
    said = (pod.get("metadata", {}).get("labels") or {}).get(keys.MANAGED_LABEL, "true")
    asks = next(((one, _ours(one)[0]) for _, one in all_containers(pod) if _ours(one)), None)
    if said == "true" or asks is None:
        return []
    # It isn't written over: a ReplicaSet that selects by it would make pods without end.
    container, resource = asks
    problem = (
        f'The label {keys.MANAGED_LABEL} is "{said}", but container {container["name"]} asks for '
        f'{resource}; write "true", or leave the label out.'
    )
    return [problem]


def _init_problems(pod: Json) -> list[str]:
    return [
        f"Init container {container['name']} asks for {_first_gpu(container)}; "
        "a seat belongs to one of spec.containers, ask for it there."
        for container in pod["spec"].get("initContainers") or ()
        if _first_gpu(container)
    ]


def _first_gpu(container: Json) -> str | None:
    names = [*_ours(container), *([keys.VENDOR_RESOURCE] if _wants_vendor(container) else [])]
    return names[0] if names else None


def _named(container: Json) -> list[str]:
    return sorted({**amounts(container, "requests"), **amounts(container, "limits")})


def _ours(container: Json) -> list[str]:
    """The resources of our group that a container names, whatever the amount."""
    return [name for name in _named(container) if name.startswith(f"{keys.GROUP}/")]


def _parts(container: Json) -> list[str]:
    """The vendor's resources that are parts of GPUs, or GPUs under another name."""
    return [name for name in _named(container) if name.startswith(_PARTS)]


_PARTS = ("nvidia.com/mig-", f"{keys.VENDOR_RESOURCE}.")


def _wants_vendor(container: Json) -> bool:
    both = (amounts(container, field).get(keys.VENDOR_RESOURCE) for field in ("limits", "requests"))
    return any(text not in (None, "0") for text in both)


def _read_container(index: int, container: Json) -> tuple[Ask | None, list[str]]:
    seats, vendor, parts = _ours(container), _wants_vendor(container), _parts(container)
    if not (seats or vendor or parts):
        return None, []
    problem = _misnamed(container["name"], seats, parts)
    problem = problem or _mixture(container["name"], seats, vendor=vendor)
    if problem:
        return None, [problem]
    resource = seats[0] if seats else keys.VENDOR_RESOURCE
    count, problem = _count(container, resource)
    if problem:
        return None, [problem]
    size = keys.seat_resource_size(resource)
    if size is None:
        return Ask(index, count), []
    if count == 1:
        return Ask(index, size), []
    problem = (
        f"Container {container['name']} asks for {count} of {resource}, but a pod has one seat; "
        f"write 1, or for more GPUs in one seat 1 of {keys.seat_resource(2)}."
    )
    return None, [problem]


def _misnamed(name: str, seats: list[str], parts: list[str]) -> str | None:
    for resource in seats:
        if keys.seat_resource_size(resource) is None:
            return (
                f"Container {name} asks for {resource}, which is no seat; write "
                f"{keys.seat_resource(1)}, or for more GPUs {keys.seat_resource(2)}."
            )
    if parts:
        return (
            f"Container {name} asks for {parts[0]}, but seats are on whole GPUs; remove it, and "
            f"ask for {keys.seat_resource(1)}."
        )
    return None


def _mixture(name: str, seats: list[str], *, vendor: bool) -> str | None:
    if len(seats) > 1:
        return f"Container {name} asks for {' and '.join(seats)}; ask for one of them."
    if seats and vendor:
        return (
            f"Container {name} asks for {seats[0]} and {keys.VENDOR_RESOURCE}; "
            f"a seat brings its GPUs with it, remove {keys.VENDOR_RESOURCE}."
        )
    return None


def _count(container: Json, resource: str) -> tuple[int, str | None]:
    name = container["name"]
    request = amounts(container, "requests").get(resource)
    # Of what can't be overcommitted request and limit are one amount: either says both.
    limit = amounts(container, "limits").get(resource, request)
    if request not in (None, limit):
        return 0, (
            f"Container {name} has a request of {request} and a limit of {limit} for {resource}; "
            "make them equal, or leave the request out."
        )
    try:
        return parse_quantity(limit or "", resource), None
    except ConfigError:
        return (
            0,
            f"Container {name} asks for {limit} of {resource}; write a whole number, such as 1.",
        )
