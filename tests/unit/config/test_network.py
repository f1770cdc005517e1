"""A NetworkPolicy for each of our pods: which ports are reached, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from images import chart
from kybernate import keys

CONFIG = Path(__file__).parents[3] / "config"
ANYWHERE = "anywhere"
OURS = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "kybernate"}}}
SCRAPERS = {"namespaceSelector": {"matchLabels": {"kyb.ai/scrapes": "true"}}}

REACHED: dict[str, dict[str, Any]] = {
    "webhook": {"https": ANYWHERE, "probes": SCRAPERS},
    "proxy": {"http": ANYWHERE},
    "extender/beside": {"plans": OURS, "https": SCRAPERS, "probes": SCRAPERS},
    "extender/service": {"https": ANYWHERE, "probes": SCRAPERS},
    "registry/sqlite": {"https": OURS, "probes": SCRAPERS},
    "registry/postgresql": {"https": OURS, "probes": SCRAPERS},
    "nodeagent": {"grpc": OURS, "probes": SCRAPERS},
    "deviceplugin": {"probes": SCRAPERS},
    "controller": {"probes": SCRAPERS},
}
"""Each port of each pod. What is reached from anywhere asks for a certificate, or is the proxy."""


def _is_object(document: object) -> bool:
    """Not so are the settings that a folder makes a ConfigMap of."""
    return isinstance(document, dict) and "kind" in document


def documents(folder: str) -> list[dict[str, Any]]:
    found = []
    for file in sorted((CONFIG / folder).glob("*.yaml")):
        found += [one for one in chart.documents(file) if _is_object(one)]
    return found


def workload(folder: str) -> dict[str, Any]:
    """The pod template of a folder."""
    kinds = ("Deployment", "DaemonSet", "StatefulSet")
    (found,) = [one for one in documents(folder) if one["kind"] in kinds]
    template: dict[str, Any] = found["spec"]["template"]
    return template


def test_every_folder_with_pods_is_here() -> None:
    made = {
        str(file.parent.relative_to(CONFIG))
        for file in CONFIG.rglob("*.yaml")
        if file.parent.name != "samples" and file.parts[-3] != "overlays"
        for one in chart.documents(file)
        if _is_object(one) and one["kind"] in ("Deployment", "DaemonSet", "StatefulSet")
    }
    # Patches of the agent's.
    assert made - {"below-ram", "runtime"} == set(REACHED)


@pytest.mark.parametrize("folder", sorted(REACHED))
def test_a_pod_is_reached_where_it_must_be_and_not_elsewhere(folder: str) -> None:
    (policy,) = [one for one in documents(folder) if one["kind"] == "NetworkPolicy"]
    template, spec = workload(folder), policy["spec"]
    assert policy["metadata"]["namespace"] == keys.NAMESPACE
    chosen = spec["podSelector"]["matchLabels"]
    assert chosen
    assert chosen.items() <= template["metadata"]["labels"].items()
    assert spec["policyTypes"] == ["Ingress"]
    declared = {
        port["name"]
        for container in template["spec"]["containers"]
        for port in container.get("ports", ())
    }
    assert declared == set(REACHED[folder])
    found = {}
    for rule in spec["ingress"]:
        sources = rule.get("from", [ANYWHERE])
        assert len(sources) == 1
        for port in rule["ports"]:
            assert port["port"] not in found
            found[port["port"]] = sources[0]
    assert found == REACHED[folder]


def test_ours_are_known_by_their_label() -> None:
    labels = OURS["podSelector"]["matchLabels"].items()
    for folder in ("nodeagent", "proxy"):
        assert labels <= workload(folder)["metadata"]["labels"].items()
