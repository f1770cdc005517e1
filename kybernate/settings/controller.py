"""Settings of the controller."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from kybernate.settings.common import Address, Level, Settings


class ControllerSettings(Settings):
    """What the controller can be told. Times are in seconds."""

    probe_listen: Address = Field(
        "127.0.0.1:9448", description="where probes and metrics are served, plain (host:port)"
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig to use; without it, the pod's own account"
    )
    tls_dir: Path = Field(
        Path("/etc/kyb/tls"),
        description="folder with ca.crt, controller.crt and controller.key, read for each "
        "connection; with agents-ca.crt where the registry certifies agents",
    )
    shared_agent_keys: bool = Field(
        True,
        description="believe agents also by certificates of `kybernate pki`, whose keys other "
        "nodes may hold; turn it off once every node has its own",
    )
    extender: str = Field(
        "https://kyb-extender.kyb-system.svc",
        description="where plans of RebalanceRequests are asked for (https://host, or https://host:port)",
    )
    api_timeout_s: float = Field(
        4.0, gt=0, le=30, description="limit for one call to the API server (s)"
    )
    agent_timeout_s: float = Field(
        4.0, gt=0, le=30, description="limit for one call to an agent (s)"
    )
    lease: str = Field(
        "",
        description="Lease in kyb-system that says which of several replicas acts; empty for one "
        "alone",
    )
    lease_s: int = Field(
        15, ge=2, description="how long the lease lasts unless it is renewed (whole seconds)"
    )
    sweep_s: float = Field(
        60.0,
        ge=1,
        le=3600,
        description="how often agents are asked for operations whose request is gone (s)",
    )
    snapshots_at_once: int = Field(
        4, ge=1, description="snapshots of one namespace that are under way at a time"
    )
    preempt_after_s: float = Field(
        5.0,
        ge=0,
        description="pods of lower priority are suspended for one that has found no seat for so "
        "long; 0: for nobody (s)",
    )
    preempts_at_once: int = Field(
        5, ge=1, description="pods whose states are put away for others at a time"
    )
    registry_url: str = Field(
        "", description="https://host:port of the registry; empty: there are no Artifacts"
    )
    artifacts_s: float = Field(
        10.0, ge=1, le=3600, description="how often Artifacts are compared with the registry (s)"
    )
    artifacts_shown: int = Field(
        200, ge=1, le=2000, description="Artifacts of a namespace: its newest ones"
    )
    sidecar_image: str = Field(
        "kybernate/sidecar:0.3.0.dev0",
        min_length=1,
        description="image that makes the first requests in the pod of a SnapshotTemplate",
    )
    threads: int = Field(16, ge=1, le=64, description="requests looked at at the same time")
    log_level: Level = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    @field_validator("registry_url")
    @classmethod
    def _secure(cls, value: str) -> str:
        if value and not value.startswith("https://"):
            raise ValueError("must be written as https://host:port")
        return value

    @field_validator("lease_s")
    @classmethod
    def _outlasts_calls(cls, value: int, field: ValidationInfo) -> int:
        longest = max(field.data.get(f"{of}_timeout_s", 0.0) for of in ("api", "agent"))
        if field.data.get("lease") and value < 3 * longest:
            raise ValueError(
                f"write at least {3 * longest:g}, or shorter api_timeout_s and agent_timeout_s"
            )
        return value
