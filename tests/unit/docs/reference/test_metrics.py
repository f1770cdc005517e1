"""docs/reference/metrics.md lists every metric of every service, and each says what it is."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.cluster.layout import REPOSITORY
from tests.unit.docs.reference import metricspage

MADE = re.compile(r'\b(?:Counter|Gauge|Histogram|Summary|\w*MetricFamily)\(\s*"(kyb_\w+)"')


@pytest.mark.parametrize(("name", "entry"), metricspage.metrics().items())
def test_each_says_what_it_is_in_a_sentence(name: str, entry: str) -> None:
    assert name.startswith(tuple(f"kyb_{part}_" for part in metricspage.PARTS))
    assert entry.rstrip().endswith(".")
    assert entry in metricspage.PAGE.read_text(), "run 'make states'"


def test_no_metric_is_made_where_the_page_does_not_look() -> None:
    known = {name.removesuffix("_total") for name in metricspage.metrics()}
    made = {
        name.removesuffix("_total")
        for folder in REPOSITORY.glob("*/__main__.py")
        if folder.parent.name not in ("bench", "tests")
        for file in folder.parent.rglob("*.py")
        for name in MADE.findall(file.read_text())
    }
    assert len(made) > 40
    assert made <= known


def test_the_page_on_monitoring_says_what_to_look_at_for_each_alert() -> None:
    """And for no other."""
    rules = yaml.safe_load((REPOSITORY / "config/monitoring/rules.yaml").read_text())
    alerts = {rule.get("alert") for group in rules["groups"] for rule in group["rules"]} - {None}
    page = (REPOSITORY / "docs/how-to/operate/monitoring.md").read_text()
    rows = "\n".join(line for line in page.splitlines() if line.startswith("| `Kybernate"))
    assert set(re.findall(r"`(Kybernate\w+)`", rows)) == alerts
