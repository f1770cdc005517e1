"""CustomResourceDefinitions as YAML, made of the models: `python -m kybernate.api.crds FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter

from kybernate import keys
from kybernate.api.gpunodes import GPUNode
from kybernate.api.placements.model import TierPlacement
from kybernate.api.policies import CheckpointPolicy
from kybernate.api.rebalances.model import RebalanceRequest
from kybernate.api.requests import CheckpointRequest
from kybernate.api.restoring.artifacts import Artifact
from kybernate.api.restoring.grants import ArtifactGrant
from kybernate.api.restoring.requests import RestoreRequestObject
from kybernate.api.schema import DEFAULT
from kybernate.api.shares import ShareObject
from kybernate.api.templates.models import SnapshotTemplate

Json = dict[str, Any]

_READY = '.status.conditions[?(@.type=="Ready")]'
_COMPLETE = '.status.conditions[?(@.type=="Complete")]'
_STATE = (
    ("Complete", "string", f"{_COMPLETE}.status"),
    ("State", "string", f"{_COMPLETE}.reason"),
)
_MESSAGE = ("Message", "string", f"{_COMPLETE}.message", 1)
_AGE = ("Age", "date", ".metadata.creationTimestamp")


class Crd(NamedTuple):
    """What a kind's CustomResourceDefinition says beyond its model: its `columns` have name, type,
    path and, if only `-o wide` shows them, a 1; `select` are fields to select by."""

    kind: str
    short: str
    model: type
    told: str
    columns: tuple[tuple[Any, ...], ...]
    select: tuple[str, ...]
    scope: str = "Namespaced"
    has_status: bool = True
    plural: str = ""

    @property
    def resource(self) -> str:
        """What its objects are called in paths."""
        return self.plural or f"{self.kind.lower()}s"


def _label(name: str) -> str:
    escaped = name.replace(".", "\\.")
    return f".metadata.labels.{escaped}"


CRDS = {
    "gpunode": Crd(
        keys.GPU_NODE_KIND,
        "gpun",
        GPUNode,
        "The GPUs of one node as its agent sees them: groups, seats, what each seat does, and how "
        "much host memory parked seats may use. The name is the node's name. Written by the agent.",
        (
            ("Ready", "string", f"{_READY}.status"),
            ("GPUs", "integer", ".status.summary.gpus"),
            ("Product", "string", ".status.gpus[0].product"),
            ("Seats", "string", ".status.summary.seats"),
            ("RAM%", "integer", ".status.summary.ramPercent"),
            ("NVMe%", "integer", ".status.summary.nvmePercent"),
            ("Driver", "string", ".status.driver.version", 1),
            ("Agent", "string", ".status.agent.address", 1),
            ("Reason", "string", f"{_READY}.message", 1),
            _AGE,
        ),
        select=(".status.driver.version", ".status.agent.version"),
        scope="Cluster",
    ),
    "artifact": Crd(
        keys.ARTIFACT_KIND,
        "art",
        Artifact,
        "What the registry knows of an artifact of this namespace; there are Artifacts of the "
        "newest ones. The controller writes an Artifact, and deletes it when the registry has "
        "dropped the artifact. Deleting an Artifact deletes nothing else: the controller writes "
        "it again.",
        (
            ("Pod", "string", ".status.pod"),
            ("Tier", "string", _label(keys.TIER_LABEL)),
            ("Bytes", "integer", ".status.bytes"),
            ("Taken", "date", ".status.takenAt"),
            ("Node", "string", ".status.copies[*].node", 1),
            ("Model", "string", ".status.model", 1),
            ("Policy", "string", _label(keys.OF_POLICY_LABEL), 1),
            ("Artifact", "string", ".status.artifact", 1),
        ),
        select=(".status.pod", ".status.model"),
        has_status=False,
    ),
    "artifactgrant": Crd(
        keys.ARTIFACT_GRANT_KIND,
        "artg",
        ArtifactGrant,
        "Lets pods of other namespaces start as copies of artifacts of this one: as a template or "
        "a clone, by the annotations kyb.ai/restore-from and kyb.ai/restore-as. An artifact holds "
        "all memory of its pod, secrets included, and the named namespaces get them. Deleting the "
        "ArtifactGrant ends it for pods that don't run yet.",
        (
            ("To", "string", ".spec.to"),
            ("Artifacts", "string", ".spec.artifacts"),
            ("Until", "string", ".spec.until"),
            _AGE,
        ),
        select=(".spec.until",),
        has_status=False,
    ),
    "checkpointpolicy": Crd(
        keys.CHECKPOINT_POLICY_KIND,
        "cpol",
        CheckpointPolicy,
        "Sets, for pods with seats that it selects by their labels, what their annotations leave "
        "open: who takes turns, and after how long seats leave a tier, also by the clock. It "
        "holds at once, for running pods too. Whoever writes it needs the right to patch pods in "
        "the namespace.",
        (
            ("Governs", "integer", ".status.governed"),
            ("Turn", "string", ".spec.turn.mode"),
            ("Ready", "string", f"{_READY}.status"),
            ("State", "string", f"{_READY}.reason"),
            ("Snapshots", "integer", ".status.snapshots.total", 1),
            ("Message", "string", f"{_READY}.message", 1),
            ("Precedence", "integer", ".spec.precedence", 1),
            _AGE,
        ),
        select=(".spec.turn.mode",),
        plural="checkpointpolicies",
    ),
    "checkpointrequest": Crd(
        keys.CHECKPOINT_REQUEST_KIND,
        "ckpt",
        CheckpointRequest,
        "Asks once that a pod with a seat is parked, woken, snapshotted or prepared for its "
        "eviction. Whoever creates it needs the right to do the like to the pod itself. Deleting "
        "it cancels what isn't done yet; an artifact that was made stays.",
        (
            ("Pod", "string", ".spec.pod"),
            ("Mode", "string", ".spec.mode"),
            ("Tier", "string", ".status.artifact.tier"),
            ("Bytes", "integer", ".status.artifact.bytes"),
            *_STATE,
            _MESSAGE,
            _AGE,
        ),
        select=(".spec.pod", ".spec.mode"),
    ),
    "rebalancerequest": Crd(
        keys.REBALANCE_REQUEST_KIND,
        "rbal",
        RebalanceRequest,
        "Asks once for a plan that moves a pod to another group or node, empties a node, or makes "
        "room for pods that wait. The plan and its cost are in the status, and nothing happens "
        "before somebody approves it. A request in kyb-system may move pods of all namespaces, "
        "one elsewhere only those of its own. If you delete it, no further step begins.",
        (
            ("Pod", "string", ".spec.move.pod"),
            ("Node", "string", ".spec.emptyNode"),
            ("Moves", "integer", ".status.plan.moves"),
            ("Done", "integer", ".status.movesDone"),
            *_STATE,
            ("Seconds", "number", ".status.plan.seconds", 1),
            ("Plan", "string", ".status.plan.hash", 1),
            _MESSAGE,
            _AGE,
        ),
        select=(".spec.move.pod", ".spec.move.model", ".spec.emptyNode"),
    ),
    "restorerequest": Crd(
        keys.RESTORE_REQUEST_KIND,
        "rst",
        RestoreRequestObject,
        "Asks once for a pod that continues from an artifact: as the successor of the artifact's "
        "pod, or as a copy. Whoever creates it needs the right to create pods in the namespace "
        "and to restore the artifact. Deleting it deletes a clone that it made; other pods stay.",
        (
            ("As", "string", ".spec.as"),
            ("Pod", "string", ".status.pod"),
            ("Node", "string", ".status.node"),
            *_STATE,
            ("Artifact", "string", ".status.artifact", 1),
            _MESSAGE,
            _AGE,
        ),
        select=(
            ".spec.as",
            ".spec.source.artifact",
            ".spec.source.pod",
            ".status.pod",
            ".status.node",
        ),
    ),
    "snapshottemplate": Crd(
        keys.SNAPSHOT_TEMPLATE_KIND,
        "stpl",
        SnapshotTemplate,
        "A workload that is started and warmed up once. Pods with the annotation "
        "kyb.ai/restore-from: template/NAME start as copies of it. The controller makes one pod "
        "from the spec, keeps an artifact of it in the object store, and deletes the pod; it does "
        "so again when the image, the spec, or the GPUs' product or driver change. Whoever writes "
        "it needs the rights to create pods in the namespace and to run commands in them.",
        (
            ("Ready", "string", f"{_READY}.status"),
            ("State", "string", f"{_READY}.reason"),
            ("Product", "string", ".status.artifact.madeOn.product"),
            ("Bytes", "integer", ".status.artifact.bytes"),
            ("Made", "date", ".status.artifact.at"),
            ("Artifact", "string", ".status.artifact.name", 1),
            ("Message", "string", f"{_READY}.message", 1),
            _AGE,
        ),
        select=(
            ".status.artifact.name",
            ".status.artifact.madeOn.product",
            ".status.artifact.madeOn.driver",
        ),
    ),
    "tierplacement": Crd(
        keys.TIER_PLACEMENT_KIND,
        "tpl",
        TierPlacement,
        "Says which artifacts of the namespace are kept, chosen by the labels of Artifacts, in "
        "which tiers copies of them lie, on how many nodes, and until when nothing drops them. "
        "Who writes it must have the right to restore the namespace's artifacts. Deleting it lets "
        "them go a minute later: what nothing else holds is dropped then.",
        (
            ("Matched", "integer", ".status.matched"),
            ("Copies", "integer", ".status.copiesThere"),
            ("Wanted", "integer", ".status.copiesWanted"),
            ("Until", "string", ".spec.pinnedUntil"),
            ("Ready", "string", f"{_READY}.status"),
            ("State", "string", f"{_READY}.reason"),
            ("Pinned", "integer", ".status.pinned", 1),
            ("Message", "string", f"{_READY}.message", 1),
            _AGE,
        ),
        select=(".spec.pinnedUntil", ".spec.copies.object"),
    ),
    "share": Crd(
        keys.SHARE_KIND,
        "shr",
        ShareObject,
        "Says how much the namespace of the same name gets of GPUs that seats of several "
        "namespaces want, and how much of GPUs and RAM it may use. Administrators write Shares.",
        (
            ("Weight", "integer", ".spec.weight"),
            ("GPU-Seconds", "number", ".status.used.gpuSeconds"),
            ("Quota", "integer", ".spec.quota.gpuSeconds"),
            ("Within", "string", '.status.conditions[?(@.type=="WithinQuota")].status'),
            ("State", "string", '.status.conditions[?(@.type=="WithinQuota")].reason'),
            ("Wakes", "integer", ".status.used.wakes", 1),
            ("Parked-GiB-Hours", "number", ".status.used.parkedGiBHours", 1),
            ("Message", "string", '.status.conditions[?(@.type=="WithinQuota")].message', 1),
            _AGE,
        ),
        select=(".spec.weight", ".spec.quota.gpuSeconds"),
        scope="Cluster",
    ),
}
"""By the names of their files in config/crd."""


def render(name: str) -> str:
    """The file of that name."""
    told = "# Made by `make crds` of kybernate/api; change the models there.\n"
    body = yaml.dump(
        definition(name), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True
    )
    return f"---\n{told}{body}"


class _Dumper(yaml.SafeDumper):
    """Lists stand inside of what they belong to; nothing is referred to."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def definition(name: str) -> Json:
    """What the file of that name in config/crd defines."""
    crd = CRDS[name]
    single = crd.kind.lower()
    plural = crd.resource
    version: Json = {"name": keys.VERSION, "served": True, "storage": True}
    if crd.has_status:
        version["subresources"] = {"status": {}}
    version["selectableFields"] = [{"jsonPath": path} for path in crd.select]
    version["additionalPrinterColumns"] = [
        {"name": title, "type": kind}
        | ({"priority": priority[0]} if priority else {})
        | {"jsonPath": path}
        for title, kind, path, *priority in crd.columns
    ]
    version["schema"] = {"openAPIV3Schema": _schema(crd.model, crd.told)}
    names = {
        "kind": crd.kind,
        "listKind": f"{crd.kind}List",
        "plural": plural,
        "singular": single,
        "shortNames": [crd.short],
        "categories": ["kyb", "kybernate"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{keys.GROUP}"},
        "spec": {"group": keys.GROUP, "scope": crd.scope, "names": names, "versions": [version]},
    }


def _schema(model: type, told: str) -> Json:
    found = TypeAdapter(model).json_schema(mode="validation")
    structural = _structural(found, found.get("$defs", {}))
    required = structural.pop("required", None)
    rules = structural.get(_RULES)
    return {
        "type": "object",
        "description": told,
        **({_RULES: rules} if rules else {}),
        **({"required": required} if required else {}),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            **structural["properties"],
        },
    }


def _structural(schema: Json, models: Json) -> Json:
    """The schema as the API server takes it: without references, defaults and titles."""
    if "$ref" in schema:
        model = models[schema["$ref"].rpartition("/")[2]]
        schema = {**model, **{name: part for name, part in schema.items() if name != "$ref"}}
        schema.pop("title", None)
    kinds = schema.get("anyOf", [])
    if {"type": "null"} in kinds:
        (kind,) = (one for one in kinds if one != {"type": "null"})
        return _structural(
            {**kind, **{name: part for name, part in schema.items() if name != "anyOf"}}, models
        )
    found = {name: schema[name] for name in schema if name not in _LEFT_OUT}
    if DEFAULT in schema:
        found["default"] = schema[DEFAULT]
    if "properties" in found:
        found["properties"] = {
            name: _structural(part, models) for name, part in found["properties"].items()
        }
    if "items" in found:
        found["items"] = _structural(found["items"], models)
    return found


_RULES = "x-kubernetes-validations"
_LEFT_OUT = ("title", "default", DEFAULT, "$defs")

if __name__ == "__main__":
    for _name in CRDS:
        Path(sys.argv[1], f"{_name}.yaml").write_text(render(_name))
