"""Settings of the extender."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from kybernate.settings.common import Address, AnyAddress, Level, Settings


class ExtenderSettings(Settings):
    """What the extender can be told. Times are in seconds, sizes in bytes."""

    listen: Address = Field(
        "127.0.0.1:9444",
        description="Address that the kube-scheduler calls, mutual TLS (host:port).",
    )
    probe_listen: Address = Field(
        "127.0.0.1:9445", description="Address of probes and metrics, plain HTTP (host:port)."
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; without it, the pod's service account."
    )
    tls_dir: Path = Field(
        Path("/etc/kyb/tls"), description="Folder with ca.crt, extender.crt and extender.key."
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
    ] = Field(
        "default",
        description="How the extender chooses among groups; "
        "docs/concepts/scheduling/scheduling.md has the policies.",
    )
    namespace_policies: str = Field(
        "",
        description="Policies for pods of namespaces, as NAMESPACE=POLICY,…. A pod's annotation "
        "kyb.ai/policy overrides its namespace's.",
    )
    weights: str = Field(
        "40,30,20,10",
        description="Weights of the policy `weighted`, in this order: free seats, GPU product, "
        "topology, how used the node is.",
    )
    profile_policies: str = Field(
        "",
        description="Policies for pods of the kube-scheduler's profiles, as "
        "SCHEDULERNAME=POLICY,…. A policy of the pod's namespace overrides its profile's.",
    )
    sharing: str = Field(
        "any",
        description="Which pods may share a GPU. any: all; namespace: those of one namespace; "
        "labels:NAME,NAME: those with the same values of these labels.",
    )
    hot_apart: bool = Field(
        False,
        description="Let a pod wait rather than share a GPU with a model that is busy at the same "
        "hours; false: the pod only prefers other GPUs.",
    )
    reserve_bytes: int = Field(
        512 << 20,
        ge=0,
        description="Memory of each GPU that no seat may use; the same as the agents' (bytes).",
    )
    reservation_s: float = Field(
        120.0,
        gt=60,
        description="How long the extender reserves a seat for a binding whose outcome is "
        "unknown; more than the 60 s that the API server gives a request (s).",
    )
    api_timeout_s: float = Field(
        4.0,
        gt=0,
        description="Deadline of one call to the API server; a bind makes up to three within the "
        "scheduler's httpTimeout (s).",
    )
    lease: str = Field(
        "",
        description="Lease in kyb-system by which replicas behind a Service choose the one that "
        "answers; empty: no Lease, as beside a kube-scheduler in the same pod.",
    )
    lease_s: int = Field(
        15,
        ge=2,
        description="How long the leader's Lease lasts unless the leader renews it (whole "
        "seconds).",
    )
    advertise: AnyAddress = Field(
        "",
        description="Address of this replica, which the leader writes into the EndpointSlice of "
        "its Service (host:port); empty: the leader writes none.",
    )
    scheduler_lease: str = Field(
        "",
        description="Lease in kyb-system of the kube-scheduler in the same pod. The extender "
        "binds only while that scheduler leads, and lists its ledger again when the scheduler "
        "becomes the leader.",
    )
    gang_hold_s: float = Field(
        30.0,
        ge=5,
        le=600,
        description="The extender holds the seats of a gang for this long; if the scheduler "
        "hasn't bound the pods by then, it releases them (s).",
    )
    gang_wait_s: float = Field(
        10.0,
        ge=0,
        le=60,
        description="How long a bind waits for the gang's other pods; less than the scheduler's "
        "httpTimeout, and no less than its longest back-off of 10 s (s).",
    )
    most_offered: int = Field(
        1,
        ge=0,
        description="How many of the nodes that fit a pod the extender offers to the scheduler: "
        "the best by the policy. With several, the scheduler's own scores count too, at a third "
        "of its throughput. A pod with preferences of its own gets all; 0: every pod gets all.",
    )
    threads: int = Field(
        16,
        ge=2,
        le=256,
        description="Calls that the extender serves at once, beside those of gangs that wait.",
    )
    max_body_bytes: int = Field(
        128 * 1024 * 1024, ge=1024, description="Largest request body (bytes)."
    )
    log_level: Level = Field(
        "INFO", description="Least severity of what is logged: DEBUG, INFO, WARNING or ERROR."
    )

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
