"""Settings of the extender."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from kybernate.settings.common import Address, AnyAddress, Level, Settings


class ExtenderSettings(Settings):
    """What the extender can be told. Times are in seconds, sizes in bytes."""

    listen: Address = Field(
        "127.0.0.1:9444", description="where the kube-scheduler calls, mutual TLS (host:port)"
    )
    probe_listen: Address = Field(
        "127.0.0.1:9445", description="where probes and metrics are served, plain (host:port)"
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig to use; without it, the pod's own account"
    )
    tls_dir: Path = Field(
        Path("/etc/kyb/tls"), description="folder with ca.crt, extender.crt and extender.key"
    )
    policy: Literal[
        "default",
        "fgd",
        "first-fit",
        "best-fit",
        "worst-fit",
        "bin-pack",
        "spread",
        "topology",
        "affinity",
        "weighted",
    ] = Field("default", description="how to choose groups; docs/concepts/scheduling/scheduling.md")
    namespace_policies: str = Field(
        "",
        description="policies for the pods of namespaces, NAMESPACE=POLICY,...; a pod's annotation "
        "kyb.ai/policy counts more",
    )
    weights: str = Field(
        "40,30,20,10",
        description="what counts how much in the policy weighted: what is free, GPU product, "
        "topology, how used the node is",
    )
    profile_policies: str = Field(
        "",
        description="policies for pods of the kube-scheduler's profiles, SCHEDULERNAME=POLICY,...; "
        "what is said for the pod's namespace counts more",
    )
    sharing: str = Field(
        "any",
        description="whose pods may share a GPU: any, namespace (those of one namespace), or "
        "labels:NAME,NAME (those with the same values of these labels)",
    )
    hot_apart: bool = Field(
        False,
        description="let a pod wait rather than share a GPU with a model that is hot at the same "
        "hours as its own; otherwise it only prefers others",
    )
    reserve_bytes: int = Field(
        512 << 20,
        ge=0,
        description="what no seat may use of each GPU; the same as for the agents (bytes)",
    )
    reservation_s: float = Field(
        120.0,
        gt=60,
        description="how long a seat stays reserved for a binding of unknown outcome; more than "
        "the 60 seconds that the API server gives a request (s)",
    )
    api_timeout_s: float = Field(
        4.0,
        gt=0,
        description="limit for one call to the API server; a bind makes up to three within the "
        "scheduler's httpTimeout (s)",
    )
    lease: str = Field(
        "",
        description="Lease in kyb-system that says which replica answers, for replicas behind a "
        "Service; empty beside a kube-scheduler of our own",
    )
    lease_s: int = Field(
        15, ge=2, description="how long the lease lasts unless it is renewed (whole seconds)"
    )
    advertise: AnyAddress = Field(
        "",
        description="where this replica is reached, which the leader writes into the "
        "EndpointSlice of its Service (host:port); empty: it writes none",
    )
    scheduler_lease: str = Field(
        "",
        description="Lease in kyb-system of the kube-scheduler in this pod; binds are refused "
        "unless it leads, and the ledger is listed again when it begins to",
    )
    gang_hold_s: float = Field(
        30.0,
        ge=5,
        le=600,
        description="how long a gang's seats are held for it before they are given back, if the "
        "scheduler does not bind its pods (s)",
    )
    gang_wait_s: float = Field(
        10.0,
        ge=0,
        le=60,
        description="how long a bind waits for the gang's other pods to come; less than the "
        "scheduler's httpTimeout, and no less than its longest back-off, 10 s (s)",
    )
    most_offered: int = Field(
        1,
        ge=0,
        description="how many of the nodes that fit a pod are offered to the scheduler at most, "
        "the best by the policy; among several its own scores count too, for a third of its "
        "throughput; pods with preferences of their own are offered all; 0: always all",
    )
    threads: int = Field(
        16,
        ge=2,
        le=256,
        description="calls served at the same time, beside those of gangs that wait",
    )
    max_body_bytes: int = Field(
        128 * 1024 * 1024, ge=1024, description="largest request body (bytes)"
    )
    log_level: Level = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    @field_validator("lease_s")
    @classmethod
    def _outlasts_calls(cls, value: int, field: ValidationInfo) -> int:
        least = 3 * field.data.get("api_timeout_s", 0.0)
        if field.data.get("lease") and value < least:
            raise ValueError(f"write at least {least:g}, or a shorter api_timeout_s")
        return value

    @field_validator("scheduler_lease")
    @classmethod
    def _one_lease(cls, value: str, field: ValidationInfo) -> str:
        if value and field.data.get("lease"):
            raise ValueError("leave it out: the setting lease decides already")
        return value
