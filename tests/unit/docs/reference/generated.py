"""`python -m tests.unit.docs.reference.generated`: writes the pages of settings, of objects, of
the file of one box, of commands, of metrics, of the APIs, and of the GPU day.

Settings come from the services' own classes, objects from the models of kybernate/api, the file's
keys from the models of kybernate/api/models.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic_core import PydanticUndefined

from kybernate.api.crds import CRDS, definition
from kybernate.api.models import ModelsFile
from kybernate.api.models.tidying import MEANINGLESS
from kybernate.api.models.values import Part
from kybernate.core.artifacts.misfits import Misfit
from kybernate.core.policy.balance import BalanceReason
from kybernate.core.policy.findings import PolicyReason
from kybernate.core.policy.shares import ShareReason
from kybernate.core.reasons import Reasoned, Standing
from kybernate.core.requests.placement import PlacementReason
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.rebalance import RebalanceReason
from kybernate.core.requests.restore import RestoreReason
from kybernate.core.requests.template import TemplateReason
from kybernate.settings.agent import AgentSettings
from kybernate.settings.controller import ControllerSettings
from kybernate.settings.extender import ExtenderSettings
from kybernate.settings.plugin import PluginSettings
from kybernate.settings.proxy import ProxySettings
from kybernate.settings.registry import RegistrySettings
from kybernate.settings.webhook import WebhookSettings
from tests.pages import item
from tests.unit.docs.reference import clipage, gpudaypage, httppage, messages, metricspage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

REPOSITORY = Path(__file__).parents[4]
REFERENCE = REPOSITORY / "docs" / "reference"
SERVICES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("kyb-agent", "KYB_AGENT", AgentSettings),
    ("kyb-device-plugin", "KYB_DEVICE_PLUGIN", PluginSettings),
    ("kyb-extender", "KYB_EXTENDER", ExtenderSettings),
    ("kyb-webhook", "KYB_WEBHOOK", WebhookSettings),
    ("kyb-proxy", "KYB_PROXY", ProxySettings),
    ("kyb-registry", "KYB_REGISTRY", RegistrySettings),
    ("kyb-controller", "KYB_CONTROLLER", ControllerSettings),
)
SETTINGS = """# Settings

Generated from `kybernate/settings` by `make generated`. Each service takes a setting as a flag
(`--min-residency-s`), from the environment (`KYB_AGENT_MIN_RESIDENCY_S`) or from a YAML file
(`--config`), in this order. `--validate-config` says what it would use.
"""
OBJECTS = """# Objects

Generated from `config/crd` by `make generated`. `kubectl explain` shows the same.
"""
MODELS_FILE = """# models.yaml

Generated from `kybernate/api/models` by `make generated`. The file of one box, which `kybernate
serve` reads; keys are llama-swap's where it has them. A key that is missing has the default;
`null` is the same as none. Any value may be, or contain, a macro.

Editors complete and check the file if its first line names
[the schema](../../../config/models.schema.json):
`# yaml-language-server: $schema=PATH/models.schema.json`. The file that the first
`kybernate serve` writes begins with such a line.

Times are numbers of seconds, or texts such as `30s`, `10m`, `2h` and `7d`. Sizes are numbers of
bytes, or texts such as `22GiB`. `${env.NAME}` is a variable of the environment, `${PORT}` the
model's port, `${MODEL_ID}` its name; `macros` defines more.

## Keys
"""
MEANINGLESS_KEYS = """## Keys of llama-swap that mean nothing here

Each is left out with a warning, as any unknown key; a key that is nearly one of the above is an
error, as it is misspelt.
"""

REFUSALS = """# Refused restores

Generated from `kybernate/core/artifacts/misfits.py` by `make generated`. Why an artifact may not be
restored into a container, and what to do about it. The event `RestoreRefused` has these sentences,
and what was found; `kyb_agent_restores_refused_total` counts them by reason. What
[a restore refuses](../artifact-layout.md#what-a-restore-refuses) of the artifact itself, such as a
wrong signature, counts as `other`.
"""
WAITS, DONE, OVER = Standing.RETRYABLE, Standing.SUCCESS, Standing.TERMINAL
REQUESTS = (
    "more becomes of it",
    {WAITS: "yes", DONE: "no, it is done", OVER: "no, it failed"},
)
CONDITIONS = (
    "condition",
    {WAITS: "False, for now", DONE: "True", OVER: "False, until it is changed"},
)
REASONS: tuple[tuple[type[Reasoned], str, str, tuple[str, dict[Standing, str]]], ...] = (
    (
        Reason,
        "a CheckpointRequest",
        (
            "Its one condition is `Complete`: `True` once it is done. While it is `False`, "
            "the reason says whether more becomes of it; `status.completionTime` is set once "
            "nothing more does."
        ),
        REQUESTS,
    ),
    (RestoreReason, "a RestoreRequest", "As those of a CheckpointRequest.", REQUESTS),
    (RebalanceReason, "a RebalanceRequest", "Its one condition is `Complete`, as above.", REQUESTS),
    (
        PolicyReason,
        "a CheckpointPolicy",
        "Its condition `Ready` is `False` while it governs nothing because of what it says.",
        CONDITIONS,
    ),
    (
        BalanceReason,
        "a CheckpointPolicy's moves",
        "One with `spec.rebalance` has the condition `Balanced`, too.",
        CONDITIONS,
    ),
    (
        TemplateReason,
        "a SnapshotTemplate",
        (
            "Its one condition is `Ready`: `True` while pods start from an artifact of it, "
            "which may be the one before while the next is made. What failed is tried again "
            "after a minute, later each time."
        ),
        (
            "more becomes of it",
            {WAITS: "yes", DONE: "no", OVER: "no, until it is changed"},
        ),
    ),
    (
        PlacementReason,
        "a TierPlacement",
        (
            "Its one condition is `Ready`: `True` while every copy that is wanted is there. "
            "What it names in `status.artifacts` is kept whatever the condition says."
        ),
        CONDITIONS,
    ),
    (
        ShareReason,
        "a Share",
        "Its one condition is `WithinQuota`. What it says of GPU-seconds is over with the window.",
        CONDITIONS,
    ),
)


def models_page() -> str:
    """docs/reference/serving/models-file.md, whole."""
    lines = [MODELS_FILE, *(_setting(path, field) for path, field in _keys(ModelsFile)), ""]
    lines.append(MEANINGLESS_KEYS)
    lines += [_item(f"`{path}`", said) for path, said in MEANINGLESS.items()]
    return "\n".join([*lines, ""])


def _keys(part: type[Part], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in part.model_fields.items():
        here = f"{path}{field.alias or name}"
        inner = field.annotation
        inside = [one for one in (inner, *get_args(inner)) if isinstance(one, type)]
        below = [one for one in inside if issubclass(one, Part)]
        if not below:
            yield here, field
        elif inner in below:
            yield from _keys(below[0], f"{here}.")
        else:
            yield from _keys(below[0], f"{here}.*.")


def settings_page() -> str:
    """docs/reference/settings.md, whole."""
    lines = [SETTINGS]
    for program, prefix, settings in SERVICES:
        lines += [f"## `{program}`", "", f"In the environment: `{prefix}_` and the name.", ""]
        lines += [_setting(name, field) for name, field in settings.model_fields.items()]
        lines.append("")
    return "\n".join(lines)


def objects_page() -> str:
    """docs/reference/objects.md, whole."""
    lines = [OBJECTS]
    for name in CRDS:
        crd = definition(name)["spec"]
        (version,) = crd["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        lines += [f"## {crd['names']['kind']}", "", f"`{crd['group']}/{version['name']}`.", ""]
        lines += [textwrap.fill(schema["description"], 120), ""]
        lines += [textwrap.fill(_selectable(version), 120, break_on_hyphens=False), ""]
        lines += [_item(f"`{path}`, {kind}", text) for path, kind, text in _fields(schema)]
        lines.append("")
    return "\n".join([*lines, *(line for one in REASONS for line in _reasons(*one))])


def _selectable(version: dict[str, Any]) -> str:
    paths = [f"`{one['jsonPath'][1:]}`" for one in version["selectableFields"]]
    return f"`kubectl get --field-selector` takes {', '.join(paths)}."


def _reasons(
    reasons: type[Reasoned], of: str, said: str, column: tuple[str, dict[Standing, str]]
) -> Iterator[str]:
    head, follows = column
    yield from (f"## Reasons of {of}", "", textwrap.fill(said, 120), "")
    yield from (f"| reason | {head} | means |", "|---|---|---|")
    for reason in reasons:
        yield f"| `{reason}` | {follows[reason.standing]} | {reason.told} |"
    yield ""


def refusals_page() -> str:
    """docs/reference/node/refusals.md, whole."""
    rows = (_item(f"`{one}`", f"{one.told} {one.remedy}") for one in Misfit)
    return "\n".join([REFUSALS, *rows, ""])


def _setting(name: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    said = "required" if default is PydanticUndefined else f"default `{_shown(default)}`"
    return _item(f"`{name}`, {said}", field.description or "")


def _shown(default: object) -> str:
    if isinstance(default, str | Path):
        return f'"{default}"'
    if isinstance(default, tuple | frozenset | dict):
        return ", ".join(map(str, default)) or "none"
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default is None else str(default)


def _item(head: str, text: str) -> str:
    return item(f"{head}: {text.rstrip('.')}." if text else head).rstrip("\n")


def _fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """Fields below a schema, but for those that every object has."""
    for name, one in schema.get("properties", {}).items():
        if not path and name in ("apiVersion", "kind", "metadata"):
            continue
        inner = one.get("items", one)
        here = f"{path}.{name}".lstrip(".") + ("[]" if inner is not one else "")
        yield here, _kind(one), one.get("description", "")
        yield from _fields(inner, here)


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {schema['items'].get('type', 'any')}s"
    return "one of " + ", ".join(map(str, schema["enum"])) if "enum" in schema else str(kind)


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": clipage.page,
    "settings.md": settings_page,
    "objects.md": objects_page,
    "serving/models-file.md": models_page,
    "metrics.md": metricspage.page,
    "node/messages.md": messages.page,
    "node/refusals.md": refusals_page,
    "http.md": httppage.page,
    "gpu-day.md": gpudaypage.page,
}
"""By the page's file in docs/reference, what makes it."""

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE
    for file, make in PAGES.items():
        (folder / file).write_text(make())
