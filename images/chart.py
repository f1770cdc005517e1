"""The Helm chart, made of config/: `python -m images.chart FOLDER`, which `make generated` calls.

config/ stays the one place that says what is installed. Each part becomes a template, in which what
values choose is put in place of what config/ has; a test holds the rendered chart against kustomize
for the same choices. Templates end in .tpl: they are no YAML until they are rendered.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from images.chartvalues import Values, commented

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Json = dict[str, Any]

CONFIG = Path(__file__).parents[1] / "config"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NAME = "kybernate"

PARTS: tuple[tuple[str, str], ...] = (
    ("crd", ""),
    ("rbac", ""),
    ("policy", ""),
    ("webhook", ""),
    ("deviceplugin", ""),
    ("nodeagent", ""),
    ("proxy", ""),
    ("controller", ""),
    ("extender/beside", 'eq .Values.extender "beside"'),
    ("extender/service", 'eq .Values.extender "service"'),
    ("registry/sqlite", 'eq .Values.registry "sqlite"'),
    ("registry/postgresql", 'eq .Values.registry "postgresql"'),
)
"""Folders of config/, and when they are installed; empty for always."""

COMPONENTS = (("below-ram", ".Values.offload.enabled"), ("runtime", ".Values.runtimeWrapper"))
"""What changes the agent, and when."""

_PATHS = {"runtime": "runtime", "pod-resources": "podResources"}
"""Folders of the node that differ by distribution, by their volumes' names."""

_MERGED_BY = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""How Kubernetes tells the items of a list apart; a patch replaces other lists."""


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def files() -> dict[str, str]:
    """The chart's files, by their path in it."""
    found = {
        "Chart.yaml": _chart(),
        "values.yaml": commented(),
        "values.schema.json": json.dumps(Values.schema_of(), indent=2) + "\n",
        "files/seats.yaml": _seats(),
    }
    for folder, condition in PARTS:
        documents = "".join(_document(one) for one in objects(CONFIG / folder))
        found[f"templates/{folder.replace('/', '-')}.tpl"] = _under(condition, documents)
    return found


def objects(folder: Path) -> Iterator[Json]:
    """What the kustomization of a folder names, in its order."""
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name in told.get("resources") or ():
        path = folder / name
        if path.is_dir():
            yield from objects(path)
        else:
            yield from documents(path)
    for one in told.get("configMapGenerator") or ():
        meta = {"name": one["name"], "namespace": one["namespace"]}
        data = {Path(name).name: (folder / name).read_text() for name in one["files"]}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def documents(path: Path) -> list[Json]:
    """The documents of a YAML file that are not empty."""
    return [one for one in yaml.load_all(path.read_text(), _LOADER) if one]


def merged(base: Any, patch: Any, key: str = "") -> Any:
    """`base` with a strategic merge patch, for the lists that our patches have."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{name: merged(base.get(name), one, name) for name, one in patch.items()}}
    if isinstance(base, list) and isinstance(patch, list) and (by := _MERGED_BY.get(key)):
        # As kustomize: what the patch names and the base has not comes first.
        theirs = {one[by]: one for one in patch}
        ours = [merged(one, theirs.pop(one[by], {})) for one in base]
        return [*theirs.values(), *ours]
    return copy.deepcopy(patch)


def _document(one: Json) -> str:
    kind, name = one["kind"], one["metadata"]["name"]
    if (kind, name) == ("Namespace", "kyb-system"):
        # Who chooses later that the chart doesn't make it would lose all that lies in it: the
        # certificates, the keys of artifacts, the registry's volume.
        stays = merged(one, {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}})
        return _under(".Values.createNamespace", _dumped(stays))
    if (kind, name) != ("DaemonSet", "kyb-agent"):
        return _dumped(one)
    return "".join(_agents(one))


def _agents(base: Json) -> Iterator[str]:
    """The agent as each choice of components makes it."""
    patches = [
        (yaml.safe_load((CONFIG / folder / "agent.yaml").read_text()), condition)
        for folder, condition in COMPONENTS
    ]
    for number in range(1 << len(patches)):
        chosen, agent = [], base
        for bit, (patch, condition) in enumerate(patches):
            if number >> bit & 1:
                agent = merged(agent, patch)
            chosen.append(condition if number >> bit & 1 else f"(not {condition})")
        yield _under(f"and {' '.join(chosen)}", _dumped(agent))


def _dumped(one: Json) -> str:
    text = yaml.dump(_marked(one), Dumper=_Dumper, sort_keys=False, width=160, allow_unicode=True)
    if "{{" in text:
        raise ValueError(f"{one['metadata']['name']} has {{{{, which Helm would read")
    for mark, template in _MARKS.items():
        text = text.replace(mark, template)
    return "---\n" + _images(text)


_MARKS = {
    "'@@seats@@'": '|\n    {{- include "kybernate.seats" . | trim | nindent 4 }}',
    "@@nvme@@": "{{ .Values.offload.folder }}",
    "@@scheduler@@": "{{ .Values.images.scheduler }}",
    **{
        f"@@{mark}@@": f'{{{{ include "kybernate.folder" (list . "{mark}") }}}}'
        for mark in _PATHS.values()
    },
}


def _images(text: str) -> str:
    for name in ("agent", "device-plugin", "sidecar", "extender", "webhook"):
        text = text.replace(f"@@image {name}@@", _image(name))
    for name in ("proxy", "registry", "controller"):
        text = text.replace(f"@@image {name}@@", _image(name))
    return text


def _image(name: str) -> str:
    return f'{{{{ include "kybernate.image" (list . "{name}") }}}}'


def _marked(one: Json) -> Json:
    """The object, with marks where values count."""
    found = copy.deepcopy(one)
    if found["kind"] == "ConfigMap" and "config.yaml" in found["data"]:
        found["data"]["config.yaml"] = "@@seats@@"
    pod = ((found.get("spec") or {}).get("template") or {}).get("spec") or {}
    for volume in pod.get("volumes") or ():
        if mark := _PATHS.get(volume["name"]):
            volume["hostPath"]["path"] = f"@@{mark}@@"
        if volume["name"] == "nvme":
            volume["hostPath"]["path"] = "@@nvme@@"
    for container in (*(pod.get("initContainers") or ()), *(pod.get("containers") or ())):
        container["image"] = _mark(container["image"])
        for variable in container.get("env") or ():
            if variable["name"].endswith("_SIDECAR_IMAGE"):
                variable["value"] = _mark(variable["value"])
    return found


def _mark(image: str) -> str:
    name = image.partition(":")[0]
    if name == "kube-scheduler":
        return "@@scheduler@@"
    return f"@@image {name.removeprefix('kybernate/')}@@"


def _under(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


def _seats() -> str:
    (found,) = (one for one in objects(CONFIG / "deviceplugin") if one["kind"] == "ConfigMap")
    text: str = found["data"]["config.yaml"]
    return text


def _chart() -> str:
    release = _release()
    major, _, dev = release.partition(".dev")
    told = {
        "apiVersion": "v2",
        "name": NAME,
        "description": "Many pods share a GPU: one is active, the others are parked.",
        "type": "application",
        "version": f"{major}-dev.{dev}" if dev else major,
        "appVersion": release,
        "kubeVersion": ">=1.31.0-0",
    }
    return "---\n" + yaml.safe_dump(told, sort_keys=False)


def _release() -> str:
    """What config/ installs."""
    (image,) = {
        container["image"]
        for one in objects(CONFIG / "proxy")
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    return str(image).rpartition(":")[2]


def write(folder: Path, made: Mapping[str, str]) -> None:
    """Write the files. A template of a part that is no more goes."""
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in (folder / "templates").glob("[!_]*.tpl"):
        if f"templates/{path.name}" not in made:
            path.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]), files())
