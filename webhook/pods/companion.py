"""The sidecar's container, and the folder that it shares with the seat's container. Pure."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from kybernate import keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kybernate.settings.webhook import WebhookSettings

    Json = dict[str, Any]


SHM_VOLUME = "kyb-shm"
_FOLDERS = (keys.POD_SOCKET_DIR, keys.SEAT_SOCKET_DIR, keys.KYB_INIT_PATH.rpartition("/")[0])


_BY_MOUNT = "/var/run/nvidia-container-devices"
"""What lies below names GPUs as NVIDIA_VISIBLE_DEVICES does, and wins over it, where the vendor's
runtime is set to accept-nvidia-visible-devices-as-volume-mounts."""


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


def problems(spec: Json, container: Json, *, seen: bool) -> Iterator[str]:
    """Names and paths of a pod that are ours. `seen`: it says that it has been here before, and may
    have what we write then, which is known by what it is."""
    for field in ("initContainers", "containers"):
        for other in spec.get(field) or ():
            ours = seen and field == "initContainers" and other.get("restartPolicy") == "Always"
            if other["name"] == keys.SIDECAR and not ours:
                yield (
                    f"A container is named {keys.SIDECAR}, which is the system's; choose another "
                    "name."
                )
            if any(_path(mount).startswith(_BY_MOUNT) for mount in other.get("volumeMounts") or ()):
                yield (
                    f"Container {other['name']} mounts something at {_BY_MOUNT}, by which the "
                    "vendor's runtime gives GPUs; leave it out, a seat brings its GPUs with it."
                )
    for volume in spec.get("volumes") or ():
        ours = seen and volume.get("emptyDir") is not None
        if volume["name"] in (keys.POD_VOLUME, SHM_VOLUME) and not ours:
            yield f"Volume {volume['name']} has a name of the system's; choose another name."
    for mount in container.get("volumeMounts") or ():
        path = _path(mount)
        # In most images a link.
        path = path.removeprefix("/var") if path.startswith("/var/run/") else path
        ours = seen and _is_shared(mount)
        for folder in _FOLDERS:
            if f"{path}/".startswith(f"{folder}/") and not ours:
                yield (
                    f"Container {container['name']} mounts something at {folder}, where the "
                    "system's files belong; choose another path."
                )


def _path(mount: Json) -> str:
    """Where it is mounted, without what a path may say in many ways."""
    return posixpath.normpath(f"/{mount['mountPath'].lstrip('/')}")


def _is_shared(mount: Json) -> bool:
    """Whether it is the mount that `share` writes, whole and writable."""
    wanted = {"name": keys.POD_VOLUME, "mountPath": keys.POD_SOCKET_DIR}
    said = {name: value for name, value in mount.items() if value not in (None, False, "")}
    return said == wanted


def _mounted(mounts: Sequence[Json], wanted: Json) -> bool:
    return any(mount["mountPath"].rstrip("/") == wanted["mountPath"] for mount in mounts)
