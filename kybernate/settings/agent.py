"""Settings of the node agent."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, field_validator

from kybernate.settings.common import Address, AnyAddress, Level, Settings


class AgentSettings(Settings):
    """What `kyb-agent` reads from flags, environment and file."""

    node: str = Field(description="This node's name in Kubernetes.", min_length=1)
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; without it the pod's service account is used."
    )
    listen: Address = Field(
        "0.0.0.0:9443", description="host:port of the mutual-TLS API for proxies."
    )
    advertise: AnyAddress = Field(
        "", description="host:port that proxies reach; default: `listen`."
    )
    tls_dir: Path = Field(
        Path("/etc/kybernate/tls"),
        description="Folder of ca.crt and agents-ca.crt; agent-<node>.crt and .key are used until "
        "the node has its own.",
    )
    own_key: bool = Field(
        True,
        description="Make a key on this node and have it certified, where there is agents-ca.crt.",
    )
    shared_agent_keys: bool = Field(
        True,
        description="Believe agents also by certificates of `kybernate pki`, whose keys other "
        "nodes may hold; turn it off once every node has its own.",
    )
    run_dir: Path = Field(Path("/run/kyb"), description="Folder of the sockets.")
    state_dir: Path = Field(Path("/var/lib/kyb"), description="Folder of journal and kyb-init.")
    cdi_dir: Path = Field(Path("/var/run/cdi"), description="Folder of CDI specifications.")
    kubelet_dir: Path = Field(Path("/var/lib/kubelet"), description="The kubelet's root folder.")
    cri_socket: Path = Field(
        Path("/run/containerd/containerd.sock"), description="The container runtime's socket."
    )
    kyb_init: Path | None = Field(
        None, description="Built kyb-init to install; without it the newest installed one is used."
    )
    min_residency_s: float = Field(
        1.0, ge=0, description="How long a woken seat keeps its GPUs while it has traffic (s)."
    )
    idle_after_s: float = Field(
        0.5, ge=0, description="A seat without requests for this long gives way at once (s)."
    )
    drain_limit_s: PositiveFloat = Field(
        30.0, description="Requests in flight for longer than this don't hold up a switch (s)."
    )
    max_wait_s: float = Field(
        60.0, ge=0, description="Demand that has waited this long comes before all priorities (s)."
    )
    turn_swap_percent: float = Field(
        5.0,
        ge=0.1,
        le=50,
        description="Swaps among seats that always want their GPUs take no more of the time (%).",
    )
    turn_shares: str = Field(
        "",
        pattern=r"^$|^[a-z0-9-]{1,63}=[0-9]{1,6}(\.[0-9]{1,3})?"
        r"(,[a-z0-9-]{1,63}=[0-9]{1,6}(\.[0-9]{1,3})?)*$",
        description="What namespaces get of GPUs that all of them always want, against 1 for those "
        "that aren't named, such as research=3,batch=0.5. A namespace's Share counts more.",
    )
    start_limit_s: PositiveFloat = Field(
        1800.0, description="A workload that doesn't serve after this is restarted (s)."
    )
    lock_timeout_ms: int = Field(
        5000, ge=1, description="How long the driver may wait for running kernels (ms)."
    )
    step_deadline_s: PositiveFloat = Field(
        120.0, description="Deadline of one park or wake, after which its helper is killed (s)."
    )
    freeze_deadline_s: PositiveFloat = Field(5.0, description="Deadline of freezing a tree (s).")
    confirm_deadline_s: PositiveFloat = Field(
        10.0, description="How long device memory may take to show as free after a park (s)."
    )
    api_calls_per_s: PositiveFloat = Field(
        50.0, description="Calls that one peer of the API may make, for long (per second)."
    )
    api_burst: int = Field(200, ge=1, description="Calls that one peer may make at once.")
    api_streams: int = Field(32, ge=1, description="Streams that one peer may have open.")
    operation_limit_s: PositiveFloat = Field(
        600.0, description="An operation without a deadline of its own has failed after this (s)."
    )
    operations_kept: int = Field(
        200,
        ge=1,
        description="How many operations that have ended are kept to be asked for, beside those of "
        "the last minute.",
    )
    lease_break_s: float = Field(
        5.0, ge=0, description="A broken proxy stream ends its leases after this (s)."
    )
    cooperate_limit_s: PositiveFloat = Field(
        10.0, description="How long a workload may take for its own part of a park or wake (s)."
    )
    reserve_bytes: int = Field(
        512 << 20, ge=0, description="Memory of each GPU that is given to no seat (bytes)."
    )
    park_bytes: int = Field(
        0, ge=0, description="Host memory for parked seats (bytes); 0: 90 % of the host's memory."
    )
    host_reserve_bytes: int = Field(
        1 << 30, ge=0, description="Host memory that parks leave available (bytes)."
    )
    stalled_percent: float = Field(
        10.0,
        gt=0,
        le=100,
        description="Nothing is parked while all tasks stall this long for want of memory (%).",
    )
    memory_short: Literal["wait", "restart"] = Field(
        "wait",
        description="A seat whose state the host can't keep: the others wait, or it restarts.",
    )
    criu: Path | None = Field(
        None,
        description="Static CRIU (make criu) that offloads seats; without it they stay in RAM.",
    )
    kyb_enter: Path | None = Field(
        None, description="Built kyb-enter, which takes CRIU into a container; `criu` needs it."
    )
    nvme_dir: Path | None = Field(
        None,
        description="Folder on a fast disk for artifacts; default: state_dir/saved.",
    )
    nvme_bytes: int = Field(
        0, ge=0, description="What may lie in nvme_dir (bytes); 0: 80 % of its file system."
    )
    object_store: str = Field(
        "", description="Object store for states below NVMe, such as s3://bucket/path."
    )
    object_access: Literal["registry", "credentials"] = Field(
        "registry",
        description="How the object store is reached: registry, which signs each request for what "
        "this node may have; credentials, which every node has then for all that is in the store. "
        "A folder, or an agent without registry_url, needs neither.",
    )
    object_bytes: int = Field(
        0, ge=0, description="What this node may have in the object store (bytes); 0: no limit."
    )
    object_bytes_per_s: int = Field(
        0,
        ge=0,
        description="States go to and come from the object store no faster, both together (bytes "
        "per second); 0: no limit.",
    )
    artifact_keys: Path = Field(
        Path("/etc/kybernate/artifact-keys"),
        description="Folder of the keys of artifacts (kybernate artifacts keys).",
    )
    registry_url: str = Field(
        "",
        description="The registry, such as https://kyb-registry.kyb-system.svc:9446; without it, "
        "only this node's own pods are succeeded.",
    )
    restore_wait_s: PositiveFloat = Field(
        600.0,
        description="A pod whose artifact can't be had by then starts cold, unless it says "
        "otherwise (s).",
    )
    carry_bytes: int = Field(
        1 << 30,
        ge=0,
        description="Files that a container changed travel with its state into another one, up to "
        "so many bytes.",
    )
    keep_left_s: float = Field(
        3600.0,
        ge=0,
        description="How long the artifact of an offloaded pod that ended is kept (s).",
    )
    keep_scaled_s: float = Field(
        7 * 86400.0,
        ge=0,
        description="The same, of a pod that was evicted, or whose CheckpointPolicy scales its "
        "Deployment to zero (idle.object), for artifacts in the object store (s).",
    )
    spot: Literal["", "aws", "gce"] = Field(
        "",
        description="Whose spot instance this node is: a notice of its metadata server that it is "
        "taken away has it evacuated.",
    )
    spot_address: Address = Field(
        "169.254.169.254:80", description="host:port of the metadata server."
    )
    tier_residency_s: float = Field(
        5.0, ge=0, description="A parked state that changed tiers stays there as long (s)."
    )
    ram_idle_s: float = Field(
        0.0,
        ge=0,
        description="A state parked in RAM that nobody used this long goes to NVMe (s); 0: only "
        "when RAM is needed.",
    )
    nvme_idle_s: float = Field(
        0.0,
        ge=0,
        description="A state on NVMe that nobody used this long goes to the object store (s); 0: "
        "only when NVMe is needed.",
    )
    prefetch_calls: float = Field(
        0.0,
        ge=0,
        description="Prefetch an offloaded seat into RAM above this forecast (calls per hour), "
        "if RAM has room to spare; 0: never.",
    )
    lazy_restores: bool = Field(
        True,
        description="Let a tree run before its memory is in, where its first answer comes sooner.",
    )
    resize_wait_s: float = Field(
        0.0,
        ge=0,
        description="Give back the CPU and memory requests of offloaded pods, and take them again "
        "before they wake: a wake waits as long for its node to have them (s); 0: pods keep them. "
        "Needs Kubernetes 1.33.",
    )
    dump_retry_s: PositiveFloat = Field(
        60.0, description="A parked state that could not be dumped stays in RAM as long (s)."
    )
    dump_deadline_s: PositiveFloat = Field(
        120.0, description="Deadline of writing a parked state to NVMe, and of reading it (s)."
    )
    transfer_deadline_s: PositiveFloat = Field(
        3600.0, description="Deadline of a transfer to or from the object store (s)."
    )
    move_bytes_per_s: int = Field(
        0,
        ge=0,
        description="States go to other nodes' agents no faster (bytes per second); 0: no limit.",
    )
    intruder: Literal["park", "kill", "report"] = Field(
        "park",
        description="What is done with a process that uses a GPU without its turn: park, kill or "
        "report. Processes of pods that no park can reach are killed unless this says report.",
    )
    vram_tolerance_bytes: int = Field(
        1 << 30,
        ge=0,
        description="Memory of a GPU that a seat may hold beyond its kyb.ai/vram: CUDA contexts "
        "and the kernels that libraries load, which few people count (bytes).",
    )
    guard_interval_s: PositiveFloat = Field(
        1.0, description="How often GPU processes and host memory are looked at (s)."
    )
    status_interval_s: PositiveFloat = Field(
        0.5, description="Shortest time between two writes of the GPUNode status (s)."
    )
    activity_interval_s: PositiveFloat = Field(
        300.0, description="How often it is told again when each seat is used (s)."
    )
    usage_interval_s: PositiveFloat = Field(
        15.0, description="How often it is told again what namespaces with a Share have used (s)."
    )
    probe_listen: Address = Field("0.0.0.0:9444", description="host:port of probes and metrics.")
    log_level: Level = Field("INFO", description="DEBUG, INFO, WARNING or ERROR.")

    @field_validator("turn_shares")
    @classmethod
    def _are_above_zero(cls, text: str) -> str:
        for name, share in _shares(text).items():
            if share <= 0:
                raise ValueError(f"the share of {name} is 0; write a number above it, such as 0.1")
        return text

    @property
    def shares(self) -> dict[str, float]:
        """`turn_shares` by namespace."""
        return _shares(self.turn_shares)

    @property
    def lock_timeout_s(self) -> float:
        """`lock_timeout_ms` in seconds."""
        return self.lock_timeout_ms / 1000


def _shares(text: str) -> dict[str, float]:
    parts = (part.partition("=") for part in text.split(",") if part)
    return {name: float(share) for name, _, share in parts}
