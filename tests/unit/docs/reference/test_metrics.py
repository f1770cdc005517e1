"""docs/reference/metrics.md, the plugin's page and the code name the same metrics, with the same
labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

import deviceplugin.metrics
import extender.metrics
import nodeagent.metrics
import registry.metrics
import webhook.app
from kybernate.core.views.utilisation import Figures, Used
from proxy.actions import Limits
from proxy.admission import Admission
from proxy.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry

REPOSITORY = Path(__file__).parents[4]
PAGE = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text()
PLUGIN_PAGE = (REPOSITORY / "docs" / "reference" / "device-plugin.md").read_text()
PLUGIN = "kyb_device_plugin_"
ROW = re.compile(r"^\| `(kyb_\w+)` \|([^|]*)\|", re.MULTILINE)
MADE = re.compile(r'\b(?:Counter|Gauge|Histogram|Summary|\w*MetricFamily)\(\s*"(kyb_\w+)"')
SERVICES = (deviceplugin, extender, nodeagent, registry, webhook)
FIGURES = Figures({("r", "p"): Used(2, 1)}, {"p": Used(2, 1)}, 1.0, 0.5)

Labels = frozenset[str]


def described() -> Iterator[tuple[str, Labels]]:
    """Each metric in the documents; the values that a label may have stand in brackets."""
    for name, cell in ROW.findall(PAGE):
        yield name, frozenset(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cell)))
    text = PLUGIN_PAGE[PLUGIN_PAGE.index("## Metrics") :].partition(f"`{PLUGIN}` +")[2]
    for name, labels in re.findall(r"`([a-z]\w+)(?:\{(\S+)\})?`", text):
        yield PLUGIN + name, frozenset(filter(None, labels.split(",")))


def shown(registry: CollectorRegistry) -> Iterator[tuple[str, Labels]]:
    """Each metric of ours, by the name that Prometheus shows (of a histogram without its parts)."""
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            name = family.name
            if family.type == "counter" and not name.startswith(PLUGIN):
                name += "_total"
            labels = getattr(collector, "_labelnames", getattr(family, "_labelnames", ()))
            if name.startswith("kyb_"):
                yield name, frozenset(labels)


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> dict[str, Labels]:
    """All metrics of all services."""
    monkeypatch.setattr(extender.metrics.USE, "source", lambda: FIGURES)
    monkeypatch.setattr(registry.metrics.COPIES, "source", lambda: ())
    proxy = Metrics(Admission(Limits())).registry
    return dict([*shown(REGISTRY), *shown(proxy)])


def test_documents_and_code_name_the_same_metrics(code: dict[str, Labels]) -> None:
    told = list(described())
    assert len(told) == len(dict(told)), "one of them is described twice"
    assert dict(told) == code


def test_no_metric_is_made_where_the_test_above_does_not_look(code: dict[str, Labels]) -> None:
    known = {name.removesuffix("_total") for name in code}
    made = {
        name.removesuffix("_total")
        for folder in REPOSITORY.glob("*/__main__.py")
        if folder.parent.name not in ("bench", "tests")
        for file in folder.parent.rglob("*.py")
        for name in MADE.findall(file.read_text())
    }
    assert len(made) > 40
    assert made <= known
