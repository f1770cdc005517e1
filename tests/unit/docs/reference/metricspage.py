"""The lists of docs/reference/metrics.md, from the metrics themselves; the prose between them is
written by hand. `tests.unit.docs.reference.generated` writes the page."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

from prometheus_client import REGISTRY

import controller.metrics
import deviceplugin.metrics
import extender.metrics
import nodeagent.metrics
import registry.metrics
import webhook.app
import webhook.evictions
from kybernate.core.views.utilisation import Figures, Used
from proxy.actions import Limits
from proxy.admission import Admission
from proxy.metrics import Metrics
from tests.cluster.layout import REPOSITORY
from tests.pages import item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry

PAGE = REPOSITORY / "docs" / "reference" / "metrics.md"
SERVICES = (
    controller.metrics,
    deviceplugin.metrics,
    extender.metrics,
    nodeagent.metrics,
    registry.metrics,
    webhook.app,
    webhook.evictions,
)
"""Whose metrics are in the process's registry once they are imported."""
PARTS = ("agent", "device_plugin", "extender", "webhook", "proxy", "registry", "controller")
FIGURES = Figures({("r", "p"): Used(2, 1)}, {"p": Used(2, 1)}, 1.0, 0.5)


def metrics() -> dict[str, str]:
    """Each metric of ours by the name that Prometheus shows, with its entry on the page."""
    proxy = Metrics(Admission(Limits())).registry
    with ExitStack() as stack:
        stack.enter_context(patch.object(extender.metrics.USE, "_figures", lambda: FIGURES))
        stack.enter_context(patch.object(registry.metrics.COPIES, "_count", lambda: ()))
        return dict(sorted([*_of(REGISTRY), *_of(proxy)]))


def page() -> str:
    """The page as it should be."""
    text, entries = PAGE.read_text(), metrics()
    for part in PARTS:
        of_part = "".join(e for name, e in entries.items() if name.startswith(f"kyb_{part}_"))
        marks = re.compile(rf"(<!-- {part} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert len(marks.findall(text)) == 1, part
        text = marks.sub(lambda found: f"{found[1]}\n{of_part}\n{found[2]}", text)  # noqa: B023
    return text


def _of(registry: CollectorRegistry) -> Iterator[tuple[str, str]]:
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            if not name.startswith("kyb_"):
                continue
            labels = getattr(collector, "_labelnames", getattr(family, "_labelnames", ()))
            kind = ", ".join([family.type, *(f"`{label}`" for label in labels)])
            yield name, item(f"`{name}` ({kind}): {family.documentation}")
