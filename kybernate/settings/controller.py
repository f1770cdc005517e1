"""Settings of the controller."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from kybernate.settings.common import Address, Level, RegistryUrl, Settings


class ControllerSettings(Settings):
    """What the controller can be told. Times are in seconds."""

    probe_listen: Address = Field(
        "127.0.0.1:9448", description="Address of probes and metrics, plain HTTP (host:port)."
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; without it, the pod's service account."
    )
    tls_dir: Path = Field(
        Path("/etc/kyb/tls"),
        description="Folder with ca.crt, controller.crt and controller.key, and with "
        "agents-ca.crt where the registry certifies agents; read again for each connection.",
    )
    shared_agent_keys: bool = Field(
        True,
        description="Accept agents' certificates that `kybernate pki` made, too, whose keys other "
        "nodes may hold. Turn it off once every node has a key of its own.",
    )
    extender: str = Field(
        "https://kyb-extender.kyb-system.svc",
        description="The extender, which makes the plans of RebalanceRequests (https://host or "
        "https://host:port).",
    )
    api_timeout_s: float = Field(
        4.0, gt=0, le=30, description="Deadline of one call to the API server (s)."
    )
    agent_timeout_s: float = Field(
        4.0, gt=0, le=30, description="Deadline of one call to an agent (s)."
    )
    lease: str = Field(
        "",
        description="Lease in kyb-system by which replicas choose the one that acts; empty: there "
        "is one replica.",
    )
    lease_s: int = Field(
        15,
        ge=2,
        description="How long the leader's Lease lasts unless the leader renews it (whole "
        "seconds).",
    )
    sweep_s: float = Field(
        60.0,
        ge=1,
        le=3600,
        description="How often the controller asks agents for operations whose request was "
        "deleted, and cancels them (s).",
    )
    snapshots_at_once: int = Field(
        4, ge=1, description="Snapshots of one namespace that may be under way at once."
    )
    plans_standing: int = Field(
        10,
        ge=1,
        description="RebalanceRequests of one namespace that get plans before one of them is "
        "approved; the others wait as Queued.",
    )
    preempt_after_s: float = Field(
        5.0,
        ge=0,
        description="A pod that has found no seat for this long has pods of lower priority "
        "suspended (s); 0: no pod is suspended for another.",
    )
    evictions_at_once: int = Field(
        5,
        ge=1,
        description="States that are put away at once so that their pods may go: for plans, for "
        "pods of higher priority, for drains.",
    )
    evictions_of_node: int = Field(2, ge=1, description="Of these, states of one node.")
    evict_s_per_gib: float = Field(
        150.0,
        gt=0,
        description="How long such a state may take into the object store for each GiB, beyond 2 "
        "minutes; then the controller cancels it (s).",
    )
    evict_idle_s: float = Field(
        150.0,
        gt=0,
        description="How long such a state may make no progress before the controller cancels "
        "it (s).",
    )
    registry_url: RegistryUrl = Field(
        "", description="The registry (https://host:port); empty: there are no Artifacts."
    )
    artifacts_s: float = Field(
        10.0,
        ge=1,
        le=3600,
        description="How often the controller compares Artifacts with the registry (s).",
    )
    artifacts_shown: int = Field(
        200,
        ge=1,
        le=2000,
        description="How many Artifacts a namespace has at most: its newest ones.",
    )
    pins_nvme_percent: float = Field(
        50.0,
        ge=0,
        le=100,
        description="Most of a node's NVMe (`nvme_bytes`) that artifacts may take which a "
        "TierPlacement pins and the object store has no copy of; more are not pinned (%).",
    )
    sidecar_image: str = Field(
        "kybernate/sidecar:0.3.0.dev0",
        min_length=1,
        description="Image that sends the warm-up requests in the pod of a SnapshotTemplate.",
    )
    threads: int = Field(
        16, ge=1, le=64, description="Objects that the controller looks at, at once."
    )
    log_level: Level = Field(
        "INFO", description="Least severity of what is logged: DEBUG, INFO, WARNING or ERROR."
    )

    @field_validator("lease_s")
    @classmethod
    def _outlasts_calls(cls, value: int, field: ValidationInfo) -> int:
        longest = max(field.data.get(f"{of}_timeout_s", 0.0) for of in ("api", "agent"))
        if field.data.get("lease") and value < 3 * longest:
            raise ValueError(
                f"write at least {3 * longest:g}, or shorter api_timeout_s and agent_timeout_s"
            )
        return value
