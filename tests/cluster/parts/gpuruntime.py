"""The container runtime `nvidia` of a node: runc, with the simulated driver in every container.

On a real node the vendor's toolkit sets such a runtime up; pods name it by the RuntimeClass nvidia.
Here containerd starts every container of it from a spec that has the devices and libraries already.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kybernate.local.simgpu.folder import LIBRARIES
from tests.cluster.parts.host import run
from tests.simgpu.cdi import CONTAINER_LIBRARIES, CONTROL_NODES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simgpu import NodeSpec

DRIVER = "/run/simgpu"
"""The simulated driver's folder, on the node and in its containers."""


def base_spec(ctr: Path, node: NodeSpec) -> str:
    """What containers of the runtime start from: containerd's own OCI spec, plus the driver."""
    spec: dict[str, Any] = json.loads(run(str(ctr), "oci", "spec"))
    numbers = {f"nvidia{gpu.minor}": gpu.minor for gpu in node.gpus} | CONTROL_NODES
    linux = spec["linux"]
    # Those of the daemon hold, as they do without a spec to start from.
    spec.get("process", {}).pop("rlimits", None)
    for name, minor in numbers.items():
        number = {"type": "c", "major": node.major, "minor": minor}
        linux.setdefault("devices", []).append(
            {**number, "path": f"/dev/{name}", "fileMode": 0o666, "uid": 0, "gid": 0}
        )
        linux["resources"]["devices"].append({**number, "allow": True, "access": "rw"})
    spec["mounts"].append(_mount(DRIVER, DRIVER, "rw"))
    for library in LIBRARIES:
        source, target = f"{DRIVER}/lib/{library}", f"{CONTAINER_LIBRARIES}/{library}"
        spec["mounts"].append(_mount(source, target, "ro"))
    return json.dumps(spec, indent=1)


def _mount(source: str, target: str, mode: str) -> dict[str, object]:
    options = [mode, "nosuid", "nodev", "rbind", "rprivate"]
    return {"type": "bind", "source": source, "destination": target, "options": options}
