"""Why a pod is refused, each reason in a sentence that says what to write instead. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api import podnotes
from kybernate.api.restores import read_wish
from kybernate.api.turns import (
    max_wait,
    min_residency,
    prefetch,
    priority,
    read_own_idle,
    read_turn,
)
from kybernate.core.artifacts.grants import why_not
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.core.gangs.gang import parse_size
from kybernate.core.placement import POLICIES
from kybernate.core.quantity import parse_quantity
from kybernate.errors import ConfigError
from webhook.pods import asking, companion, direct, probes
from webhook.pods.cluster import Wish
from webhook.pods.original import MOST_VRAM, read_original

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.core.artifacts.grants import Grant
    from webhook.pods.cluster import Cluster
    from webhook.pods.original import Original

    Json = dict[str, Any]

_GANG = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_GROUP = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,50}[A-Za-z0-9])?")
_HOSTNAME = "kubernetes.io/hostname"
# With these, no sum is beyond what a quantity can be.
_LEAST_VRAM = 2**20
_MOST_MEMORY = 2**62
LONGEST = 1024
"""Characters of an annotation that many processes keep, and a GPUNode repeats for each seat."""
_LIMITED = (*keys.USER_ANNOTATIONS, keys.SHORT_PREFER_GROUP, keys.GPU_TOPOLOGY)


def refusals(pod: Json, cluster: Cluster, scheduler: str) -> list[str]:
    """Why the pod can't have a seat as it stands, before or after mutation; none if it can.

    A pod that doesn't concern us is never refused.
    """
    if not asking.concerns_us(pod):
        return []
    ask, problems = asking.read_ask(pod)
    problems += [*_pod_rules(pod, scheduler), *_rights_rules(pod), *_annotation_rules(pod)]
    problems += _environment_rules(pod, ask)
    if ask is None:
        return problems
    container = pod["spec"]["containers"][ask.index]
    problems += _group_rules(pod, cluster, ask.resource)
    original, wrong = read_original(pod, container["name"])
    problems += _memory_rules(container, original)
    problems += [wrong] if wrong else []
    problems += probes.problems(pod, container, original.probes if original else {})
    problems += companion.problems(pod["spec"], container, seen=original is not None)
    problems += direct.problems(pod["spec"], container)
    assumed = original is not None and original.vram is not None
    if keys.VRAM not in asking.annotations_of(pod) and not assumed:
        problems += _vram_rules(cluster, wish(pod, ask.resource))
    return problems


def unprepared(pod: Json, scheduler: str) -> list[str]:
    """What the mutating webhook would have done and is not (or no longer) there."""
    ask, problems = asking.read_ask(pod)
    if not asking.concerns_us(pod) or ask is None or problems:
        return []
    container = pod["spec"]["containers"][ask.index]
    gates = [gate.get("conditionType") for gate in pod["spec"].get("readinessGates") or ()]
    checks = {
        f"the label {keys.MANAGED_LABEL}": asking.is_labelled(pod),
        "spec.schedulerName": pod["spec"].get("schedulerName") == scheduler,
        "spec.readinessGates": keys.WAKEABLE_CONDITION in gates,
        f"the limits of container {container['name']}": asking.amounts(container, "limits").get(
            ask.resource
        )
        == "1",
        f"the command of container {container['name']}": (container.get("command") or [""])[0]
        == keys.KYB_INIT_PATH,
        **{
            f"the variable {keys.ENV_NVIDIA_VISIBLE} of container {other['name']}": (
                asking.hides_gpus(other)
            )
            for _, other in asking.all_containers(pod)
            if other is not container
        },
        f"annotation {keys.ORIGINAL_RESOURCES}": keys.ORIGINAL_RESOURCES
        in asking.annotations_of(pod),
        **_unaccompanied(pod, container),
        "spec.schedulingGates": keys.GANG not in asking.annotations_of(pod)
        or {"name": keys.GANG_GATE} in (pod["spec"].get("schedulingGates") or ()),
    }
    return [
        f"After admission by the mutating webhook {what} is not what it wrote; check that the "
        "MutatingWebhookConfiguration kyb-webhook is in place and no other webhook undoes its work."
        for what, fine in checks.items()
        if not fine
    ]


def _unaccompanied(pod: Json, container: Json) -> dict[str, bool]:
    original, _ = read_original(pod, container["name"])
    if original is None:
        return {}
    arguments = probes.sidecar_arguments(pod, container, original.probes, original.scrape)
    sidecar = companion.find(pod["spec"]) or {}
    ours = {
        f"the {field} of container {container['name']}": probes.is_ours(field, container[field])
        for field in probes.ROLES
        if container.get(field)
    }
    return {f"container {keys.SIDECAR}": sidecar.get("args", []) == arguments, **ours}


def wish(pod: Json, resource: str) -> Wish:
    """What the pod wants of the cluster, as far as GPUNodes tell."""
    return Wish(
        resource,
        podnotes.products(asking.annotations_of(pod)),
        asking.annotations_of(pod).get(keys.REQUIRE_GROUP, ""),
        str((pod["spec"].get("nodeSelector") or {}).get(_HOSTNAME, "")),
    )


_SHARED: dict[tuple[str, bool], str] = {
    ("shareProcessNamespace", True): "process 1 of the seat's container must be ours; leave it out",
    ("hostPID", True): "a seat's processes need a PID namespace of their own; leave it out",
    ("hostIPC", True): "shared memory is parked with its seat; leave it out, /dev/shm is given",
    ("hostNetwork", True): "connections to a parked seat are held in a network namespace of its "
    "own; leave it out, and have clients come through a Service or a hostPort",
    ("hostUsers", False): "a seat's processes are held by the node's own user IDs; leave it out, "
    "and set runAsNonRoot instead",
}
"""Fields of a pod's spec, each with the value that no seat can have, and what is said then."""

CAPABILITIES = frozenset(
    (
        *("ALL", "BPF", "CHECKPOINT_RESTORE", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN"),
        *("SYS_BOOT", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO"),
    )
)
"""Those that reach beyond a container, or into the processes by which a seat is held."""


def _rights_rules(pod: Json) -> list[str]:
    problems = []
    for _, container in asking.all_containers(pod):
        rights = container.get("securityContext") or {}
        if rights.get("privileged"):
            problems.append(
                f"Container {container['name']} is privileged, and would have every GPU of the "
                "node without a turn; leave privileged out, and add the capabilities that it needs."
            )
        problems += [
            f"Container {container['name']} adds the capability {name}, which reaches into other "
            "processes or the node; leave it out, and do what needs it in a pod without a seat."
            for name in (rights.get("capabilities") or {}).get("add") or ()
            if name.upper().removeprefix("CAP_") in CAPABILITIES
        ]
    return problems


def _pod_rules(pod: Json, scheduler: str) -> list[str]:
    spec, problems = pod["spec"], []
    problems += [
        f"spec.{field} is {str(value).lower()}, but {why}."
        for (field, value), why in _SHARED.items()
        if spec.get(field) is value
    ]
    if (spec.get("os") or {}).get("name") not in (None, "linux"):
        problems.append(
            "spec.os.name is not linux, but seats are on Linux nodes; leave spec.os out."
        )
    if spec.get("nodeName"):
        problems.append(
            "spec.nodeName passes the scheduler by, so no GPUs would be assigned; "
            "use a nodeSelector on kubernetes.io/hostname instead."
        )
    if spec.get("schedulerName") not in (None, "", "default-scheduler", scheduler):
        problems.append(
            f"spec.schedulerName is {spec['schedulerName']}, but seats are assigned by "
            f"{scheduler}; leave it out."
        )
    if any((spec.get("resources") or {}).get(field) for field in ("limits", "requests")):
        problems.append(
            "spec.resources limits the pod as a whole, but a parked seat's memory is added to its "
            "container; set resources on the containers instead."
        )
    return problems


def _annotation_rules(pod: Json) -> list[str]:
    given, problems = asking.annotations_of(pod), []
    taken = [name for name in keys.SYSTEM_ANNOTATIONS if name in given]
    if taken:
        problems.append(
            f"Annotation {taken[0]} is written by the system; remove it, and ask for a group with "
            f"{keys.PREFER_GROUP} or {keys.REQUIRE_GROUP}."
        )
    problems += [
        f"{name} has {len(text)} characters; write at most {LONGEST}."
        for name, text in given.items()
        if name in _LIMITED and len(text) > LONGEST
    ]
    model = given.get(keys.MODEL, "")
    if "/" in model or not model.isprintable():
        problems.append(
            f"{keys.MODEL} is {model[:64]!r}, but requests name a model as model or "
            "namespace/model; write a name without '/' that the engine serves, such as llama-8b."
        )
    short, whole = given.get(keys.SHORT_PREFER_GROUP), given.get(keys.PREFER_GROUP)
    if short is not None and whole and whole != short:
        problems.append(
            f"Annotation {keys.SHORT_PREFER_GROUP} is {short[:64]!r}, but {keys.PREFER_GROUP} is "
            f"{whole[:64]!r}; leave the former out."
        )
    if keys.VRAM in given:
        problems += _vram_form(given[keys.VRAM])
    if given.get(keys.POLICY, next(iter(POLICIES))) not in POLICIES:
        problems.append(
            f"{keys.POLICY} is {given[keys.POLICY]!r}; write one of {', '.join(sorted(POLICIES))}."
        )
    if keys.GPU_PRODUCT in given and not podnotes.products(given):
        problems.append(
            f"{keys.GPU_PRODUCT} is empty; write product names separated by |, or leave it out."
        )
    return problems + _form_rules(given) + _gang_rules(given) + _restore_rules(pod, given)


_READERS: tuple[Callable[[dict[str, str]], object], ...] = (
    podnotes.ready_within,
    podnotes.ready_active,
    podnotes.expendable,
    podnotes.keeps_connections,
    podnotes.leaves_nccl,
    podnotes.park_tier,
    podnotes.topology,
    lambda given: read_turn(given, of_job=False, callable_=True),
    read_own_idle,
    min_residency,
    max_wait,
    prefetch,
    priority,
)
"""What the extender and the agent read of annotations: what they couldn't read is refused."""


def _form_rules(given: dict[str, str]) -> list[str]:
    problems = []
    for read in _READERS:
        try:
            read(given)
        except ConfigError as error:
            problems.append(f"{error}.")
    return problems


def _restore_rules(pod: Json, given: dict[str, str]) -> list[str]:
    try:
        wanted = read_wish(given)
    except ConfigError as error:
        return [f"{error}."]
    own = pod["metadata"].get("namespace") or ""
    if wanted and wanted.kind is RestoreAs.SUCCESSOR and wanted.namespace(own) != own:
        problem = (
            f"{keys.RESTORE_FROM} is {wanted.source}, of another namespace, and a pod succeeds "
            f"only one of its own; set {keys.RESTORE_AS}: {RestoreAs.TEMPLATE} to start as a copy."
        )
        return [problem]
    return []


def foreign_state(pod: Json, grants: Callable[[], Iterable[Grant]], now: float) -> list[str]:
    """Why the pod may not have the artifact that it asks for, of another namespace; none if it
    may. `now`: seconds since 1970. Raises what `grants` raises, which is asked only for that."""
    wanted = read_wish(asking.annotations_of(pod)) if asking.concerns_us(pod) else None
    if wanted is None or not wanted.artifact:
        return []
    sentence = why_not(wanted.artifact, pod["metadata"].get("namespace") or "", grants, now)
    return [sentence] if sentence else []


def _gang_rules(given: dict[str, str]) -> list[str]:
    if keys.GANG not in given:
        if keys.GANG_SIZE not in given:
            return []
        problem = (
            f"{keys.GANG_SIZE} is set without {keys.GANG}; name the gang there, the same for all "
            "of its pods, or leave the size out."
        )
        return [problem]
    problems = []
    if not _GANG.fullmatch(given[keys.GANG]):
        problems.append(
            f"{keys.GANG} is {given[keys.GANG]!r}; write a name of at most 63 letters, digits, "
            "'-', '_' and '.', such as training-1."
        )
    try:
        parse_size(given.get(keys.GANG_SIZE))
    except ConfigError as error:
        problems.append(f"{error}.")
    return problems


def _vram_form(text: str) -> list[str]:
    try:
        if _LEAST_VRAM <= parse_quantity(text, keys.VRAM) <= MOST_VRAM:
            return []
    except ConfigError as error:
        return [f"{error}."]
    problem = (
        f"{keys.VRAM} is {text!r}, which no program uses of a GPU; write the most memory used per "
        "GPU, such as 24Gi."
    )
    return [problem]


def _environment_rules(pod: Json, ask: asking.Ask | None) -> list[str]:
    seat = pod["spec"]["containers"][ask.index] if ask else None
    return [
        f"Container {container['name']} sets {variable['name']}, which the system sets for the "
        "GPUs of the seat; remove it."
        for _, container in asking.all_containers(pod)
        for variable in container.get("env") or ()
        if (variable["name"] in keys.SYSTEM_ENV or variable["name"].startswith("KYB_"))
        and not (_says_void(variable) and container is not seat)
    ]


def _says_void(variable: Json) -> bool:
    return (variable["name"], variable.get("value")) == (keys.ENV_NVIDIA_VISIBLE, keys.NO_GPUS)


def _memory_rules(container: Json, original: Original | None) -> list[str]:
    problems = []
    before = {"resources": original.resources} if original else container
    for field in ("limits", "requests"):
        try:
            for holder in (container, before):
                text = asking.amounts(holder, field).get("memory")
                amount = parse_quantity("0" if text is None else text, f"resources.{field}.memory")
        except ConfigError as error:
            problems.append(f"Container {container['name']}: {error}.")
            continue
        if amount > _MOST_MEMORY:
            problems.append(
                f"Container {container['name']}: resources.{field}.memory is {text}, which no node "
                "has; write less."
            )
    return problems


def _group_rules(pod: Json, cluster: Cluster, resource: str) -> list[str]:
    problems, known = [], cluster.names(resource)
    for annotation in keys.PRIORITY_HINTS:
        name = asking.annotations_of(pod).get(annotation)
        if name is None:
            continue
        if not _GROUP.fullmatch(name):
            problems.append(f"{annotation} is {name!r}; write the name of a group, such as G01.")
        elif cluster.groups and name not in known:
            there = ", ".join(sorted(known)[:16]) or "none"
            problems.append(
                f"{annotation} is {name}, but no node has a group of that name for {resource}; "
                f"there are: {there}."
            )
    return problems


def _vram_rules(cluster: Cluster, wanted: Wish) -> list[str]:
    if cluster.gpu_sizes(wanted):
        return []
    problem = (
        f"No node is known that offers {wanted.resource} with the GPUs this pod accepts, so the "
        f"memory of its GPUs is unknown; write the most it uses per GPU in {keys.VRAM}, such as "
        "24Gi."
    )
    return [problem]
