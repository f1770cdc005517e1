"""What admission does to a pod that asks for a seat. Pure; a second pass changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from kybernate import keys
from kybernate.api import podnotes
from kybernate.core.quantity import format_quantity, parse_quantity
from kybernate.errors import RefusedError
from webhook.pods import asking, companion, probes
from webhook.pods.original import Original, read_original
from webhook.pods.patch import diff
from webhook.pods.validate import refusals, wish

if TYPE_CHECKING:
    from kybernate.settings.webhook import WebhookSettings
    from webhook.pods.asking import Ask
    from webhook.pods.cluster import Cluster

    Json = dict[str, Any]

_LONGEST_COMMAND = 16 * 1024
"""Characters that are recorded: annotations have 256 KiB in all."""

_TRANSPORTS = frozenset(
    (
        *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"),
        "VLLM_ALLREDUCE_USE_SYMM_MEM",
    )
)
"""Switches of the ways by which one GPU reaches another's memory; the others are time-outs."""

SHM_PATH = "/dev/shm"  # noqa: S108 - a mount point, not a temporary file


def mutate(pod: Json, cluster: Cluster, settings: WebhookSettings) -> list[Json]:
    """The JSON Patch that gives the pod what a seat needs; empty if it doesn't concern us.

    Raises RefusedError, with all sentences, if the pod can't have a seat as it stands.
    """
    if not asking.concerns_us(pod):
        return []
    # Some 10 µs instead of the 100 of copy.deepcopy.
    wanted = orjson.loads(orjson.dumps(pod))
    asking.adopt_short_names(wanted)
    problems = refusals(wanted, cluster, settings.scheduler_name)
    ask, _ = asking.read_ask(wanted)
    if problems or ask is None:
        raise RefusedError(" ".join(problems))
    _change(wanted, ask, cluster, settings)
    return diff(pod, wanted)


def signed(spec: Json, user: str) -> list[Json]:
    """The JSON Patch that has a request say who makes it, whatever it says itself."""
    if spec.get("requestedBy") == user:
        return []
    return [{"op": "add", "path": "/spec/requestedBy", "value": user}]


def hide_from_debuggers(pod: Json, before: Json) -> list[Json]:
    """The JSON Patch that hides the GPUs from the ephemeral containers that `before` hasn't.

    Those that are there already can't be changed any more. What they say themselves is judged by
    the policy kyb-debug-containers.
    """
    if not asking.concerns_us(pod):
        return []
    field = "ephemeralContainers"
    wanted = orjson.loads(orjson.dumps(pod))
    old = {container["name"] for container in before["spec"].get(field) or ()}
    for container in wanted["spec"].get(field) or ():
        if container["name"] not in old:
            _hide_gpus(container)
    return diff(pod, wanted)


def _change(pod: Json, ask: Ask, cluster: Cluster, settings: WebhookSettings) -> None:
    spec, container = pod["spec"], pod["spec"]["containers"][ask.index]
    original = _record(pod, container, ask, cluster)
    # By the label policies tell pods with a seat from others without a look at each. Nobody denies
    # it here: such a pod is refused.
    labels = pod["metadata"].get("labels") or {}
    pod["metadata"]["labels"] = {keys.MANAGED_LABEL: "true", **labels}
    _set_resources(pod, container, ask, original)
    _set_command(container)
    _set_environment(container, _environment(pod, settings, ask.gpus))
    _share_memory(spec, container)
    _accompany(pod, container, original, settings)
    for _, other in asking.all_containers(pod):
        if other is not container:
            _hide_gpus(other)
    _tolerate(spec)
    if keys.GANG in asking.annotations_of(pod):
        # Lifted by the extender for all of the gang's pods together, once each has a seat.
        _append_missing(spec, "schedulingGates", {"name": keys.GANG_GATE})
    spec["schedulerName"] = settings.scheduler_name
    _append_missing(spec, "readinessGates", {"conditionType": keys.WAKEABLE_CONDITION})
    grace = spec.get("terminationGracePeriodSeconds")
    # Kubernetes' own default of 30 s is filled in before admission; without it, it would be later.
    spec["terminationGracePeriodSeconds"] = max(
        30 if grace is None else grace, settings.min_grace_s
    )


def _record(pod: Json, container: Json, ask: Ask, cluster: Cluster) -> Original:
    original, _ = read_original(pod, container["name"])
    if original is None:
        words = container.get("command"), container.get("args")
        short = sum(map(len, (*(words[0] or ()), *(words[1] or ())))) <= _LONGEST_COMMAND
        resources = copy.deepcopy(container.get("resources") or {})
        original = Original(container["name"], resources, *(words if short else (None, None)))
    original = replace(
        original,
        vram=_assumed(pod, ask, cluster, original.vram),
        probes=probes.originals(container, original.probes),
        scrape=probes.scraped(pod, container, original.scrape),
    )
    text = original.to_text()
    present = asking.annotations_of(pod)
    if present.get(keys.ORIGINAL_RESOURCES) != text:
        pod["metadata"]["annotations"] = {**present, keys.ORIGINAL_RESOURCES: text}
    return original


def _assumed(pod: Json, ask: Ask, cluster: Cluster, recorded: int | None) -> int | None:
    """Bytes per GPU if the pod doesn't say; what was recorded stays if there are such GPUs."""
    if keys.VRAM in asking.annotations_of(pod):
        return None
    sizes = cluster.gpu_sizes(wish(pod, ask.resource))
    return recorded if recorded in sizes or not sizes else max(sizes)


def _accompany(pod: Json, container: Json, original: Original, settings: WebhookSettings) -> None:
    """Probes go to the sidecar, if there is something for it to do, and to kyb-init."""
    arguments = probes.sidecar_arguments(pod, container, original.probes, original.scrape)
    probes.intercept(container, original.probes)
    if original.scrape is not None:
        pod["metadata"]["annotations"][keys.SCRAPE_PORT] = str(keys.SIDECAR_SCRAPE_PORT)
    companion.share(pod["spec"], container)
    if arguments:
        companion.add(pod["spec"], arguments, settings)


def _set_resources(pod: Json, container: Json, ask: Ask, original: Original) -> None:
    """One seat instead of the vendor's resource, and memory for what the GPUs hold."""
    stated = asking.annotations_of(pod).get(keys.VRAM)
    vram = parse_quantity(stated) if stated is not None else original.vram or 0
    before = {"resources": original.resources}
    limit = asking.amounts(before, "limits").get("memory")
    request = asking.amounts(before, "requests").get("memory", limit or "0")
    resources = container["resources"] = container.get("resources") or {}
    for field, memory in (("limits", limit), ("requests", request)):
        # Null is how some clients write an empty object.
        amounts = resources[field] = resources.get(field) or {}
        amounts.pop(keys.VENDOR_RESOURCE, None)
        amounts[ask.resource] = "1"
        if memory is not None:
            _set_amount(amounts, "memory", parse_quantity(memory) + vram * ask.gpus)


def _set_amount(amounts: Json, name: str, wanted: int) -> None:
    # The API server rewrites quantities in its own form; the same amount is left as it is.
    present = amounts.get(name)
    if present is None or parse_quantity(str(present)) != wanted:
        amounts[name] = format_quantity(wanted)


def _set_command(container: Json) -> None:
    command = container.get("command") or []
    if command[:1] == [keys.KYB_INIT_PATH]:
        return
    if command:
        arguments = container.pop("args", None) or []
        container["command"] = [keys.KYB_INIT_PATH, "--", *command, *arguments]
    else:
        container["command"] = [keys.KYB_INIT_PATH, "--image", "--"]


def _environment(pod: Json, settings: WebhookSettings, gpus: int) -> dict[str, str]:
    wanted = dict(settings.environment)
    if gpus > 1:
        wanted |= settings.group_environment
    if podnotes.leaves_nccl(asking.annotations_of(pod)):
        return {name: value for name, value in wanted.items() if name not in _TRANSPORTS}
    return wanted


def _set_environment(container: Json, wanted: dict[str, str]) -> None:
    present = {variable["name"] for variable in container.get("env") or ()}
    missing = [{"name": name, "value": wanted[name]} for name in sorted(wanted.keys() - present)]
    if missing:
        container["env"] = [*(container.get("env") or ()), *missing]


def _hide_gpus(container: Json) -> None:
    """Say that this container gets no GPU: its image or a ConfigMap may say that it gets all."""
    variables = container.get("env") or []
    if all(variable["name"] != keys.ENV_NVIDIA_VISIBLE for variable in variables):
        said = {"name": keys.ENV_NVIDIA_VISIBLE, "value": keys.NO_GPUS}
        container["env"] = [*variables, said]


def _share_memory(spec: Json, container: Json) -> None:
    mounts = container.get("volumeMounts") or []
    if any(mount["mountPath"].rstrip("/") == SHM_PATH for mount in mounts):
        return
    container["volumeMounts"] = [*mounts, {"name": companion.SHM_VOLUME, "mountPath": SHM_PATH}]
    volumes = spec.get("volumes") or []
    if all(volume["name"] != companion.SHM_VOLUME for volume in volumes):
        spec["volumes"] = [
            *volumes,
            {"name": companion.SHM_VOLUME, "emptyDir": {"medium": "Memory"}},
        ]


def _tolerate(spec: Json) -> None:
    """What Kubernetes adds for the vendor's resource, so that tainted GPU nodes stay in reach."""
    for toleration in spec.get("tolerations") or ():
        covers = toleration.get("key") in (None, "", keys.VENDOR_RESOURCE)
        if covers and toleration.get("operator") == "Exists" and not toleration.get("effect"):
            return
    _append_missing(spec, "tolerations", {"key": keys.VENDOR_RESOURCE, "operator": "Exists"})


def _append_missing(spec: Json, field: str, item: Json) -> None:
    items = spec.get(field) or []
    if item not in items:
        spec[field] = [*items, item]
