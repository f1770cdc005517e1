"""What the Helm chart lets its user choose: the values, their comments and their JSON schema."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _Values(BaseModel):
    """Values of which no other name is taken: a slip of the pen is told."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Images(_Values):
    """Where images come from."""

    prefix: str = Field(
        default="kybernate/",
        pattern="^(.*/)?$",
        description="Before each image's name, with a slash at its end.",
    )
    tag: str = Field(default="", description="Of all our images; empty: the chart's appVersion.")
    scheduler: str = Field(
        default="kube-scheduler:v1.34.2", description="Upstream's, of the cluster's minor version."
    )


class Offload(_Values):
    """Parked seats may leave RAM."""

    enabled: bool = Field(
        default=False,
        description="To NVMe and an object store; takes Secrets (docs/how-to/install/offload.md).",
    )
    folder: str = Field(
        default="/var/lib/kyb-nvme", pattern="^/", description="On the nodes' fastest disk."
    )


class Values(_Values):
    """All of them."""

    images: Images = Field(default=Images(), description="Where images come from.")
    distribution: Literal["containerd", "k3s", "microk8s"] = Field(
        default="containerd",
        description="Where nodes have containerd's socket and kubelet's folder; k3s: also RKE2.",
    )
    create_namespace: bool = Field(
        default=True,
        description="Make kyb-system. False where the certificates' Secrets are made in it before.",
    )
    extender: Literal["beside", "service"] = Field(
        default="beside",
        description="Beside a kube-scheduler of its own, or behind a Service for one of yours.",
    )
    registry: Literal["sqlite", "postgresql"] = Field(
        default="sqlite",
        description="The registry's database; postgresql takes the Secret kyb-registry-database.",
    )
    offload: Offload = Field(default=Offload(), description="Parked seats may leave RAM.")
    runtime_wrapper: bool = Field(
        default=False,
        description="Put kyb-runtime onto the nodes (docs/how-to/install/runtime-wrapper.md).",
    )
    seats: dict[str, Any] = Field(
        default={},
        description="What the nodes offer: config.yaml of the device plugin; empty: its default.",
    )

    @classmethod
    def schema_of(cls) -> dict[str, Any]:
        """As Helm checks values."""
        found: dict[str, Any] = cls.model_json_schema()
        return {"$schema": "http://json-schema.org/draft-07/schema#", **found}


def commented() -> str:
    """values.yaml: each value with its default, and what it is for above it."""
    return "---\n# Made by `make chart`.\n" + _lines(Values(), "")


def _lines(values: BaseModel, indent: str) -> str:
    text = ""
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        text += f"{indent}# {field.description}\n"
        if isinstance(value, BaseModel):
            text += f"{indent}{field.alias}:\n{_lines(value, indent + '  ')}"
        else:
            text += f"{indent}{field.alias}: {json.dumps(value)}\n"
    return text
