"""The sidecar's container, and the folder that it shares with the seat's container. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate import keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kybernate.settings.webhook import WebhookSettings

    Json = dict[str, Any]


SHM_VOLUME = "kyb-shm"
_FOLDERS = (keys.POD_SOCKET_DIR, keys.SEAT_SOCKET_DIR, keys.KYB_INIT_PATH.rpartition("/")[0])


def wanted(arguments: Sequence[str], settings: WebhookSettings) -> Json:
    """The container, clean by Pod Security `restricted` whatever the pod's others are."""
    amounts = {"cpu": settings.sidecar_cpu, "memory": settings.sidecar_memory}
    return {
        "name": keys.SIDECAR,
        "image": settings.sidecar_image,
        "restartPolicy": "Always",
        "args": list(arguments),
        "resources": {"limits": dict(amounts), "requests": dict(amounts)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": keys.POD_VOLUME, "mountPath": keys.POD_SOCKET_DIR, "readOnly": True}
        ],
    }


def add(spec: Json, arguments: Sequence[str], settings: WebhookSettings) -> None:
    """Add it, or bring the one that is there up to date; what others filled in stays."""
    container = wanted(arguments, settings)
    present = find(spec)
    if present is None:
        spec["initContainers"] = [*(spec.get("initContainers") or ()), container]
        return
    for name, value in container.items():
        if name == "volumeMounts":
            mounts = present.get(name) or []
            present[name] = [*mounts, *(m for m in value if not _mounted(mounts, m))]
        else:
            present[name] = value


def find(spec: Json) -> Json | None:
    """The sidecar of a pod that has been here before."""
    for container in spec.get("initContainers") or ():
        if container["name"] == keys.SIDECAR:
            found: Json = container
            return found
    return None


def share(spec: Json, container: Json) -> None:
    """The folder in which process 1 of the seat's container listens."""
    mount = {"name": keys.POD_VOLUME, "mountPath": keys.POD_SOCKET_DIR}
    mounts = container.get("volumeMounts") or []
    if not _mounted(mounts, mount):
        container["volumeMounts"] = [*mounts, mount]
    volumes = spec.get("volumes") or []
    if all(volume["name"] != keys.POD_VOLUME for volume in volumes):
        spec["volumes"] = [*volumes, {"name": keys.POD_VOLUME, "emptyDir": {}}]


def problems(spec: Json, container: Json) -> Iterator[str]:
    """Names and paths of a pod new here that are ours."""
    for field in ("initContainers", "containers"):
        for other in spec.get(field) or ():
            if other["name"] == keys.SIDECAR:
                yield (
                    f"A container is named {keys.SIDECAR}, which is the system's; choose another "
                    "name."
                )
    for volume in spec.get("volumes") or ():
        if volume["name"] in (keys.POD_VOLUME, SHM_VOLUME):
            yield f"Volume {volume['name']} has a name of the system's; choose another name."
    for mount in container.get("volumeMounts") or ():
        for folder in _FOLDERS:
            if f"{mount['mountPath'].rstrip('/')}/".startswith(f"{folder}/"):
                yield (
                    f"Container {container['name']} mounts something at {folder}, where the "
                    "system's files belong; choose another path."
                )


def _mounted(mounts: Sequence[Json], wanted: Json) -> bool:
    return any(mount["mountPath"].rstrip("/") == wanted["mountPath"] for mount in mounts)
