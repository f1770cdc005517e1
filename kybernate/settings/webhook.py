"""Settings of the admission webhook."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - pydantic reads it
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from kybernate import keys
from kybernate.settings.common import Address, Level, Settings

_ENVIRONMENT = {
    # Memory that NCCL exports, and multicast objects of NVLink switches, make a checkpoint hang.
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    # io_uring can't be dumped, and downloads by xet keep connections open.
    "HF_HUB_DISABLE_XET": "1",
    "UV_USE_IO_URING": "0",
    # Forked workers inherit the parent's descriptors of the GPU.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Watchdogs that take a long freeze for a fault: docs/reference/node/timers.md says what each
    # would do.
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "NCCL_RAS_ENABLE": "0",
    "VLLM_RPC_TIMEOUT": "86400000",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": "86400",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "86400",
}
_GROUP_ENVIRONMENT = {
    # Mappings of another process's GPU memory can't be checkpointed.
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400",
}


class WebhookSettings(Settings):
    """What the webhook can be told. Times are in seconds or days, as their names say."""

    listen: Address = Field("127.0.0.1:18443", description="Address of the HTTPS API (host:port).")
    probe_listen: Address = Field(
        "127.0.0.1:18081",
        description="Address of /healthz, /readyz and /metrics, plain HTTP (host:port).",
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; without it, the pod's service account."
    )
    cert_dir: Path | None = Field(
        None,
        description="Folder for the CA and the leaf certificate; without it, both are in the "
        "Secret.",
    )
    secret: str = Field(
        "kyb-webhook-tls", description="Secret in kyb-system for the CA and the leaf certificate."
    )
    service: str = Field("kyb-webhook", description="The webhook's Service in kyb-system.")
    url: str = Field(
        "",
        description="https URL that the API server calls instead of the Service; empty: the "
        "Service.",
    )
    configuration: str = Field(
        "kyb-webhook",
        description="Name of both webhook configurations, into which the webhook writes its "
        "caBundle.",
    )
    ca_days: int = Field(3650, ge=2, description="How long a new CA is valid (days).")
    leaf_days: int = Field(90, ge=2, description="How long a new leaf certificate is valid (days).")
    renew_days: int = Field(
        30,
        ge=1,
        description="The webhook renews the CA and the leaf certificate this long before their "
        "end (days).",
    )
    check_s: float = Field(
        10.0, gt=0, description="How often the webhook checks certificates and caBundles (s)."
    )
    settle_s: float = Field(
        60.0,
        ge=0,
        description="How long the webhook waits for a new caBundle to reach every API server, "
        "before it serves a certificate of that CA (s).",
    )
    request_s: float = Field(
        10.0, gt=0, description="Deadline for a request to arrive, TLS handshake included (s)."
    )
    evict_within_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="How long the webhook refuses the eviction of a pod with a seat, until the "
        "pod's state is in the object store (s); 0: evictions aren't refused.",
    )
    scheduler_name: str = Field(
        keys.SCHEDULER_NAME, description="Scheduler that places pods with a seat."
    )
    min_grace_s: int = Field(
        60, ge=0, description="Least terminationGracePeriodSeconds of a pod with a seat (s)."
    )
    environment: dict[str, str] = Field(
        default_factory=lambda: dict(_ENVIRONMENT),
        description="Environment variables that a checkpoint needs, which each container with a "
        "seat gets (JSON object); a value of the pod's own overrides them.",
    )
    group_environment: dict[str, str] = Field(
        default_factory=lambda: dict(_GROUP_ENVIRONMENT),
        description="Environment variables that containers with a seat on two GPUs or more get, "
        "too (JSON object).",
    )
    sidecar_image: str = Field(
        "kybernate/sidecar:0.3.0.dev0",
        min_length=1,
        description="Image of the sidecar, which answers probes while a workload is parked.",
    )
    sidecar_cpu: str = Field("50m", description="CPU of the sidecar, request and limit (quantity).")
    sidecar_memory: str = Field(
        "32Mi", description="Memory of the sidecar, request and limit (quantity)."
    )
    threads: int = Field(8, ge=1, description="Requests that the webhook answers at once.")
    log_level: Level = Field(
        "INFO", description="Least severity of what is logged: DEBUG, INFO, WARNING or ERROR."
    )

    @field_validator("environment", "group_environment", mode="before")
    @classmethod
    def _parse_object(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError('write a JSON object, such as {"NCCL_NVLS_ENABLE": "0"}') from error

    @field_validator("environment", "group_environment")
    @classmethod
    def _leave_system_names(cls, value: dict[str, str]) -> dict[str, str]:
        taken = sorted(set(value) & set(keys.SYSTEM_ENV))
        if taken:
            raise ValueError(f"{taken[0]} is set by the system for every seat; leave it out")
        return value

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and not (parts.scheme == "https" and parts.hostname):
            raise ValueError("write it as https://host:port")
        return value

    @property
    def server_names(self) -> tuple[str, ...]:
        """The DNS names and addresses that the API server may call us by."""
        full = f"{self.service}.{keys.NAMESPACE}.svc"
        host = urlsplit(self.url).hostname
        names = (full, f"{full}.cluster.local", "localhost", "127.0.0.1")
        return names if host is None or host in names else (*names, host)
