"""Settings of the node agent."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, field_validator

from kybernate.settings.common import Address, AnyAddress, Level, Settings


class AgentSettings(Settings):
    """What `kyb-agent` reads from flags, environment and file."""

    node: str = Field(description="The node's name in Kubernetes.", min_length=1)
    kubeconfig: Path | None = Field(
        None,
        description="kubeconfig file of the agent; without it, the agent uses its pod's service "
        "account.",
    )
    listen: Address = Field(
        "0.0.0.0:9443",
        description="Address of the mutual-TLS API for proxies and the controller (host:port).",
    )
    advertise: AnyAddress = Field(
        "", description="Address at which proxies reach the agent (host:port); empty: `listen`."
    )
    tls_dir: Path = Field(
        Path("/etc/kybernate/tls"),
        description="Folder with ca.crt and agents-ca.crt. The agent uses agent-<node>.crt and "
        "agent-<node>.key from it until the node has a key of its own.",
    )
    own_key: bool = Field(
        True,
        description="Make a key on this node, and have the registry certify it, if `tls_dir` has "
        "agents-ca.crt.",
    )
    shared_agent_keys: bool = Field(
        True,
        description="Accept agents' certificates that `kybernate pki` made, too, whose keys other "
        "nodes may hold. Turn it off once every node has a key of its own.",
    )
    run_dir: Path = Field(Path("/run/kyb"), description="Folder of the agent's sockets.")
    state_dir: Path = Field(
        Path("/var/lib/kyb"), description="Folder of the journal and of kyb-init."
    )
    cdi_dir: Path = Field(
        Path("/var/run/cdi"), description="Folder of the node's CDI specifications."
    )
    kubelet_dir: Path = Field(Path("/var/lib/kubelet"), description="The kubelet's root folder.")
    cri_socket: Path = Field(
        Path("/run/containerd/containerd.sock"), description="The container runtime's socket."
    )
    kyb_init: Path | None = Field(
        None,
        description="The kyb-init that the agent installs (path); without it, containers get the "
        "newest one that is installed.",
    )
    min_residency_s: float = Field(
        1.0,
        ge=0,
        description="A seat that has traffic keeps its GPUs for at least this long after a wake "
        "(s).",
    )
    pod_residency_s: float = Field(
        30.0,
        ge=0,
        description="The longest time that `kyb.ai/min-residency` or a CheckpointPolicy may say "
        "instead of `min_residency_s`: others wait for so long (s).",
    )
    idle_after_s: float = Field(
        0.5,
        ge=0,
        description="A seat that had no requests for this long gives up its GPUs as soon as "
        "another seat wants them (s).",
    )
    drain_limit_s: PositiveFloat = Field(
        30.0,
        description="A request in flight holds up a park for at most this long (s).",
    )
    max_wait_s: float = Field(
        60.0,
        ge=0,
        description="A seat whose requests have waited for this long comes before seats of any "
        "priority; `kyb.ai/max-wait` or a CheckpointPolicy may say longer (s).",
    )
    turn_swap_percent: float = Field(
        5.0,
        ge=0.1,
        le=50,
        description="Seats that always want their GPUs are swapped so rarely that swaps take at "
        "most this part of the time (%).",
    )
    turn_shares: str = Field(
        "",
        pattern=r"^$|^[a-z0-9-]{1,63}=[0-9]{1,6}(\.[0-9]{1,3})?"
        r"(,[a-z0-9-]{1,63}=[0-9]{1,6}(\.[0-9]{1,3})?)*$",
        description="Weights of namespaces for GPUs that seats of several namespaces always want, "
        "such as research=3,batch=0.5; a namespace that isn't named has 1. A namespace's Share "
        "overrides its weight here.",
    )
    start_limit_s: PositiveFloat = Field(
        1800.0,
        description="The agent restarts a workload that doesn't serve within this time after its "
        "start (s).",
    )
    lock_timeout_ms: int = Field(
        5000,
        ge=1,
        description="How long the driver may wait for kernels that run, before a park fails (ms).",
    )
    step_deadline_s: PositiveFloat = Field(
        120.0,
        description="Deadline of one park or wake; the agent kills the helper that is late (s).",
    )
    freeze_deadline_s: PositiveFloat = Field(5.0, description="Deadline of freezing a tree (s).")
    confirm_deadline_s: PositiveFloat = Field(
        10.0, description="After a park, GPU memory must show as free within this time (s)."
    )
    api_calls_per_s: PositiveFloat = Field(
        50.0, description="Calls that one peer of the API may make in the long run (per second)."
    )
    api_burst: int = Field(
        200,
        ge=1,
        description="Calls that one peer of the API may make at once, before `api_calls_per_s` "
        "limits it.",
    )
    api_streams: int = Field(
        32, ge=1, description="Streams that one peer of the API may have open at once."
    )
    operation_limit_s: PositiveFloat = Field(
        600.0, description="Deadline of an operation that names none (s)."
    )
    operations_kept: int = Field(
        200,
        ge=1,
        description="How many operations that have ended the agent remembers, beside those of the "
        "last minute.",
    )
    lease_break_s: float = Field(
        5.0,
        ge=0,
        description="The agent ends a proxy's leases if the proxy's stream is broken for this "
        "long (s).",
    )
    cooperate_limit_s: PositiveFloat = Field(
        10.0,
        description="How long a workload that cooperates may take for its own part of a park or "
        "wake (s).",
    )
    reserve_bytes: int = Field(
        512 << 20, ge=0, description="Memory of each GPU that no seat may use (bytes)."
    )
    park_bytes: int = Field(
        0, ge=0, description="Host memory for parked seats (bytes); 0: 90 % of the host's memory."
    )
    host_reserve_bytes: int = Field(
        1 << 30,
        ge=0,
        description="A park begins only if it leaves this much of the host's memory available "
        "(bytes).",
    )
    stalled_percent: float = Field(
        10.0,
        gt=0,
        le=100,
        description="No park begins while all tasks of the host stall for memory for more than "
        "this part of the time (%).",
    )
    memory_short: Literal["wait", "restart"] = Field(
        "wait",
        description="What happens when the host's memory can't hold the state of the active seat. "
        "wait: other seats wait for their turn; restart: the seat's workload is restarted when "
        "another seat wants the GPUs.",
    )
    criu: Path | None = Field(
        None,
        description="Static CRIU, made by `make criu`, which offloads seats (path); without it, "
        "parked seats stay in RAM.",
    )
    kyb_enter: Path | None = Field(
        None,
        description="kyb-enter, which starts CRIU inside a container (path); required with `criu`.",
    )
    nvme_dir: Path | None = Field(
        None,
        description="Folder on a fast disk for artifacts; without it, `saved` below state_dir.",
    )
    nvme_bytes: int = Field(
        0,
        ge=0,
        description="Most that artifacts in `nvme_dir` may take (bytes); 0: 80 % of its file "
        "system.",
    )
    object_store: str = Field(
        "",
        description="Object store for artifacts, such as s3://bucket/path; empty: seats are "
        "offloaded to NVMe at most.",
    )
    object_access: Literal["registry", "credentials"] = Field(
        "registry",
        description="How the agent reaches the object store. registry: the registry signs each "
        "request, for what this node may read and write; credentials: the agent has the store's "
        "credentials, and so may read all of it. A folder needs neither, nor does an agent "
        "without `registry_url`.",
    )
    object_bytes: int = Field(
        0,
        ge=0,
        description="Most that this node's artifacts may take in the object store (bytes); 0: no "
        "limit.",
    )
    object_bytes_per_s: int = Field(
        0,
        ge=0,
        description="Most that the node sends to and fetches from the object store, both together "
        "(bytes per second); 0: no limit.",
    )
    artifact_keys: Path = Field(
        Path("/etc/kybernate/artifact-keys"),
        description="Folder of the keys of artifacts, made by `kybernate artifacts keys`.",
    )
    registry_url: str = Field(
        "",
        description="The registry, such as https://kyb-registry.kyb-system.svc:9446; empty: pods "
        "continue only from artifacts of this node.",
    )
    restore_wait_s: PositiveFloat = Field(
        600.0,
        description="A pod waits this long for the artifact from which it is to continue, then "
        "starts cold; `kyb.ai/restore-else: fail` on the pod has it wait on (s).",
    )
    carry_bytes: int = Field(
        1 << 30,
        ge=0,
        description="Most that the files may take which a container has changed, for an artifact "
        "to carry them into another container (bytes).",
    )
    keep_left_s: float = Field(
        3600.0,
        ge=0,
        description="How long the artifact of an offloaded pod is held after the pod has ended "
        "(s).",
    )
    keep_scaled_s: float = Field(
        7 * 86400.0,
        ge=0,
        description="How long an artifact in the object store is held after its pod was evicted, "
        "or was scaled to zero by a CheckpointPolicy (`idle.object`) (s).",
    )
    spot: Literal["", "aws", "gce"] = Field(
        "",
        description="The cloud whose spot instance this node is: aws or gce. The agent asks the "
        "instance's metadata server, and evacuates the node when the cloud is about to take it "
        "away; empty: never.",
    )
    spot_address: Address = Field(
        "169.254.169.254:80", description="Address of that metadata server (host:port)."
    )
    answer_within_s: float | None = Field(
        None,
        ge=0,
        description="Requests of a pod without kyb.ai/ready-within are in time within this and "
        "twice the wake of its seat, and the agent swaps seats by that limit (s); null: it serves "
        "the oldest request first.",
    )
    tier_residency_s: float = Field(
        5.0,
        ge=0,
        description="A parked seat that has changed its tier stays in that tier for at least this "
        "long (s).",
    )
    ram_idle_s: float = Field(
        0.0,
        ge=0,
        description="A seat parked in RAM goes to NVMe once nobody has used it for this long (s); "
        "0: only when other seats need the RAM.",
    )
    nvme_idle_s: float = Field(
        0.0,
        ge=0,
        description="A seat on NVMe goes to the object store once nobody has used it for this "
        "long (s); 0: only when other seats need the space.",
    )
    prefetch_calls: float = Field(
        0.0,
        ge=0,
        description="The agent brings an offloaded seat into RAM, if RAM has room to spare, once "
        "it expects this many requests (per hour); 0: never. `kyb.ai/prefetch` overrides it.",
    )
    lazy_restores: bool = Field(
        True,
        description="Let a restored tree run before all of its memory is in, if its first answer "
        "comes sooner that way.",
    )
    resize_wait_s: float = Field(
        0.0,
        ge=0,
        description="The agent takes CPU and memory requests off offloaded pods, and gives them "
        "back before a wake; a wake waits this long for its node to have them (s). 0: pods keep "
        "their requests. Needs Kubernetes 1.33.",
    )
    dump_retry_s: PositiveFloat = Field(
        60.0,
        description="After a dump has failed, the seat stays in RAM for this long before the next "
        "attempt (s).",
    )
    dump_deadline_s: PositiveFloat = Field(
        120.0,
        description="Deadline of writing an artifact to NVMe, and of reading it from there (s).",
    )
    transfer_deadline_s: PositiveFloat = Field(
        3600.0,
        description="Deadline of sending an artifact to the object store, and of fetching it (s).",
    )
    move_bytes_per_s: int = Field(
        0,
        ge=0,
        description="Most that the node sends to other nodes' agents (bytes per second); 0: no "
        "limit.",
    )
    intruder: Literal["park", "kill", "report"] = Field(
        "park",
        description="What the agent does to a process that uses a GPU without its seat's turn: "
        "park, kill or report. A process of a pod that can't be parked is killed, unless this is "
        "report.",
    )
    vram_tolerance_bytes: int = Field(
        1 << 30,
        ge=0,
        description="How far a seat's use of a GPU's memory may exceed its `kyb.ai/vram`, for "
        "what few people count: CUDA contexts and the kernels that libraries load (bytes).",
    )
    guard_interval_s: PositiveFloat = Field(
        1.0, description="How often the agent checks the GPUs' processes and the host's memory (s)."
    )
    status_interval_s: PositiveFloat = Field(
        0.5, description="Shortest time between two writes of the GPUNode's status (s)."
    )
    activity_interval_s: PositiveFloat = Field(
        300.0, description="How often the agent publishes at which hours each seat is used (s)."
    )
    usage_interval_s: PositiveFloat = Field(
        15.0,
        description="How often the agent publishes how much namespaces with a Share have used (s).",
    )
    probe_listen: Address = Field(
        "0.0.0.0:9444", description="Address of probes and metrics, plain HTTP (host:port)."
    )
    traces: bool = Field(
        False,
        description="Send spans of what seats go through by OTLP/HTTP, as OpenTelemetry's "
        "variables say (OTEL_EXPORTER_OTLP_ENDPOINT, …), in the traces of requests that wait.",
    )
    log_level: Level = Field(
        "INFO", description="Least severity of what is logged: DEBUG, INFO, WARNING or ERROR."
    )

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
