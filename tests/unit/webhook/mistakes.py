"""What users get wrong, with what the webhook says to each: the lists of
docs/reference/admission.md.

python -m tests.unit.webhook.mistakes    renews the lists in place
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kybernate import keys
from tests.pages import item
from tests.unit.webhook.pods import CLUSTER, pod, seat
from webhook.pods.advice import advice
from webhook.pods.cluster import Cluster
from webhook.pods.validate import refusals

Pod = dict[str, Any]

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "admission.md"
ONE, TWO, VENDOR = keys.seat_resource(1), keys.seat_resource(2), keys.VENDOR_RESOURCE
VRAM = {keys.VRAM: "24Gi"}


def noted(**notes: str) -> Pod:
    """A pod with annotations, named without their `kyb.ai/`."""
    named = {f"{keys.GROUP}/{name.replace('_', '-')}": text for name, text in notes.items()}
    return pod(seat(), notes={**VRAM, **named})


def specced(**spec: Any) -> Pod:
    return pod(seat(), notes=VRAM, spec=spec)


def containing(**container: Any) -> Pod:
    return pod(seat(), notes=VRAM, container=container)


def adding(*capabilities: str) -> Pod:
    """The part of a container that asks for capabilities."""
    return {"securityContext": {"capabilities": {"add": list(capabilities)}}}


def probing(probe: Pod, **spec: Any) -> Pod:
    return pod(seat(), notes=VRAM, container={"livenessProbe": probe}, spec=spec)


def beside(other: Pod, limits: Pod | None = None, **notes: str) -> Pod:
    """A pod with two containers, `c` and another."""
    made = pod(limits, notes={**VRAM, **notes})
    made["spec"]["containers"].append({"name": "d", **other})
    return made


REFUSED: dict[str, list[tuple[str, Pod]]] = {
    "What it asks for": [
        (f"two seats: `{ONE}: 1` and `{TWO}: 1`", pod(seat(**{TWO: "1"}), notes=VRAM)),
        (f"several of one: `{ONE}: 2`", pod({ONE: "2"}, notes=VRAM)),
        (f"part of one: `{ONE}: 500m`", pod({ONE: "500m"}, notes=VRAM)),
        ("a seat by a wrong name: `kyb.ai/gpu-1-seat: 1`", pod({"kyb.ai/gpu-1-seat": "1"})),
        (f"a seat and `{VENDOR}`", pod(seat(**{VENDOR: "1"}), notes=VRAM)),
        ("part of a GPU: `nvidia.com/mig-1g.10gb: 1`", pod({"nvidia.com/mig-1g.10gb": "1"})),
        (
            "GPUs in two containers",
            beside({"resources": {"limits": {VENDOR: "1"}}}, seat()),
        ),
        (
            "a seat in an init container",
            specced(initContainers=[{"name": "i", "resources": {"limits": seat()}}]),
        ),
        ("a request that is not the limit", pod({VENDOR: "2"}, {VENDOR: "1"}, notes=VRAM)),
        (f'the label `{keys.MANAGED_LABEL}: "true"` alone', pod(notes=VRAM)),
        (f'a seat and the label `{keys.MANAGED_LABEL}: "false"`', pod(seat(), label="false")),
        (
            f"`{keys.GPUS_ANNOTATION}` without the label",
            pod(notes={keys.GPUS_ANNOTATION: "1"}, label=None),
        ),
        (f"`{keys.GPUS_ANNOTATION}: two`", pod(notes={**VRAM, keys.GPUS_ANNOTATION: "two"})),
        (f'`{keys.GPUS_ANNOTATION}: "2"` beside a seat of one', noted(gpus="2")),
        (
            f"`{keys.GPUS_ANNOTATION}` with several containers",
            beside({}, **{keys.GPUS_ANNOTATION: "1"}),
        ),
    ],
    "Memory": [
        (f"`{keys.VRAM}: 24 GB`", noted(vram="24 GB")),
        (f'`{keys.VRAM}: "24"`, which is 24 bytes', noted(vram="24")),
        ("a limit that can't be read: `memory: much`", pod(seat(memory="much"), notes=VRAM)),
        ("`memory: 7Ei`", pod(seat(memory="7Ei"), notes=VRAM)),
        (
            f"no `{keys.VRAM}`, and no node known that fits",
            pod(seat(), notes={keys.GPU_PRODUCT: "B200"}),
        ),
    ],
    "The pod": [
        ("`shareProcessNamespace: true`", specced(shareProcessNamespace=True)),
        ("`hostPID: true`", specced(hostPID=True)),
        ("`hostIPC: true`", specced(hostIPC=True)),
        ("`hostNetwork: true`", specced(hostNetwork=True)),
        ("`hostUsers: false`", specced(hostUsers=False)),
        ("a privileged container", containing(securityContext={"privileged": True})),
        (
            "`SYS_PTRACE` in an init container",
            specced(initContainers=[{"name": "i", **adding("SYS_PTRACE")}]),
        ),
        ("`nodeName`", specced(nodeName="n1")),
        ("`schedulerName: other`", specced(schedulerName="other")),
        ("`resources` of the pod", specced(resources={"limits": {"memory": "1Gi"}})),
        ("`os.name: windows`", specced(os={"name": "windows"})),
        ("a container with the sidecar's name", specced(initContainers=[{"name": keys.SIDECAR}])),
        ("a volume with a name of ours", specced(volumes=[{"name": "kyb-shm"}])),
        ("a mount at a path of ours", containing(volumeMounts=[{"mountPath": "/run/kyb"}])),
        (
            "GPUs by a mount",
            beside(
                {"volumeMounts": [{"mountPath": "/var/run/nvidia-container-devices/all"}]}, seat()
            ),
        ),
        (
            "RDMA: `rdma/hca_shared_devices_a: 1`",
            pod(seat(**{"rdma/hca_shared_devices_a": "1"}), notes=VRAM),
        ),
        (
            "a volume of `/dev/infiniband` or `/dev/nvidia-fs0`",
            pod(
                seat(),
                notes=VRAM,
                container={"volumeMounts": [{"name": "gds", "mountPath": "/dev/nvidia-fs0"}]},
                spec={"volumes": [{"name": "gds", "hostPath": {"path": "/dev/nvidia-fs0"}}]},
            ),
        ),
        ("`CUDA_VISIBLE_DEVICES`", containing(env=[{"name": "CUDA_VISIBLE_DEVICES"}])),
        (
            "`NVIDIA_VISIBLE_DEVICES: all` in a container without a seat",
            beside({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, seat()),
        ),
    ],
    "Annotations": [
        ("one of the system's", noted(group="G0")),
        (f"`{keys.MODEL}: other/llama`", noted(model="other/llama")),
        ("one of more than 1024 characters", noted(gpu_product="x" * 1025)),
        (
            f"`{keys.SHORT_PREFER_GROUP}: G0` beside `{keys.PREFER_GROUP}: G1`",
            pod(seat(), notes={**VRAM, keys.SHORT_PREFER_GROUP: "G0", keys.PREFER_GROUP: "G1"}),
        ),
        ("the webhook's own record, changed", noted(original_resources="{}")),
        (f'`{keys.READY_WITHIN}: "30"`', noted(ready_within="30")),
        (f"`{keys.READY_WHILE}: awake`", noted(ready_while="awake")),
        (f"`{keys.ON_PREEMPT}: evict`", noted(on_preempt="evict")),
        (f"`{keys.POLICY}: fastest`", noted(policy="fastest")),
        (f"`{keys.PARK_TIER}: disk`", noted(park_tier="disk")),
        (f"`{keys.TURN}: sometimes`", noted(turn="sometimes")),
        (f"`{keys.TURN}: always,weight=0`", noted(turn="always,weight=0")),
        (f"`{keys.IDLE}: 30s`", noted(idle="30s")),
        (
            f"`{keys.IDLE}: nvme=1h` with `{keys.PARK_TIER}: nvme`",
            noted(idle="nvme=1h", park_tier="nvme"),
        ),
        (f"`{keys.MIN_RESIDENCY}: 2h`", noted(min_residency="2h")),
        (f"`{keys.MAX_WAIT}: soon`", noted(max_wait="soon")),
        (f"`{keys.PREFETCH}: often`", noted(prefetch="often")),
        (f"`{keys.PRIORITY}: high`", noted(priority="high")),
        (f"`{keys.RESTORE_FROM}: llama-0`", noted(restore_from="llama-0")),
        (f"`{keys.RESTORE_FROM}: pod/..`", noted(restore_from="pod/..")),
        (
            f"`{keys.RESTORE_FROM}` names another namespace's state",
            noted(restore_from="other/llama-0@20260131T120000Z-00c0ffee"),
        ),
        (f"`{keys.RESTORE_AS}` without `{keys.RESTORE_FROM}`", noted(restore_as="clone")),
        (f'`{keys.CONNECTIONS}: "yes"`', noted(connections="yes")),
        (f"`{keys.NCCL}: fast`", noted(nccl="fast")),
        (
            f"`{keys.GPU_TOPOLOGY}: fast`",
            pod(seat(), notes={**VRAM, keys.GPU_TOPOLOGY: "fast"}),
        ),
        (f'`{keys.GPU_PRODUCT}: ""`', noted(gpu_product="")),
        (f"`{keys.REQUIRE_GROUP}: G 1`", noted(require_group="G 1")),
        (f"`{keys.REQUIRE_GROUP}: G9`, which no node has", noted(require_group="G9")),
        (f"`{keys.COOPERATE}: tgi`", noted(cooperate="tgi")),
        (f"`{keys.COOPERATE}: vllm` without a port", noted(cooperate="vllm")),
        (f"`{keys.GANG}` without a size", noted(gang="train")),
        (f"`{keys.GANG_SIZE}` without a gang", noted(gang_size="2")),
        (f'`{keys.GANG_SIZE}: "1.0"`', noted(gang="train", gang_size="1.0")),
        (f"`{keys.GANG}: a b`", noted(gang="a b", gang_size="2")),
    ],
    "Probes": [
        ("no handler", probing({"periodSeconds": 1})),
        ("`exec` without a command", probing({"exec": {}})),
        ("a very long command", probing({"exec": {"command": ["x" * 20000]}})),
        ("`host`", probing({"httpGet": {"port": 80, "host": "example.org"}})),
        ("a port name that is not declared", probing({"httpGet": {"port": "web"}})),
        ("another port of the sidecar's", probing({"httpGet": {"port": 15482}})),
        (
            f"a `{keys.SCRAPE_PORT}` that is none",
            pod(seat(), notes={**VRAM, keys.SCRAPE: "true", keys.SCRAPE_PORT: "70000"}),
        ),
        ("the port that the webhook writes", probing({"httpGet": {"port": 15480}})),
        (
            "a `postStart` hook that asks the workload",
            containing(lifecycle={"postStart": {"httpGet": {"port": 1}}}),
        ),
    ],
}
WARNED: list[tuple[str, Pod]] = [
    ("a slip: `kyb.ai/perfer-group`", noted(perfer_group="G0")),
    ("a product that no node has", noted(gpu_product="B200")),
    ("more VRAM than any GPU that suits", noted(vram="100Gi")),
]


def sentence(given: Pod) -> str:
    """The one thing that is wrong with it."""
    cluster = (
        Cluster() if keys.VRAM not in (given["metadata"].get("annotations") or {}) else CLUSTER
    )
    (found,) = refusals(given, cluster, keys.SCHEDULER_NAME) or advice(given, CLUSTER)
    return found


def lists() -> str:
    """The page's lists, as Markdown."""
    parts = [_list(f"### {title}", rows) for title, rows in REFUSED.items()]
    return "\n".join([*parts, _list("### Admitted, with a warning", WARNED)])


def _list(title: str, rows: list[tuple[str, Pod]]) -> str:
    return f"{title}\n\n" + "".join(item(what, _shown(sentence(given))) for what, given in rows)


def _shown(text: str) -> str:
    return "> " + text.replace("<", "&lt;")


def renewed(page: str) -> str:
    """The page with its lists as they should be."""
    before, rest = page.split(f"{_BEGIN}\n")
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n\n{lists()}\n{_END}{after}"


_BEGIN, _END = "<!-- lists -->", "<!-- end -->"

if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
