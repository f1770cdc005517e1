"""Rules and dashboards of config/monitoring, on a real Prometheus that reads all of our metrics."""

from __future__ import annotations

import itertools
import re
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from images.cache import REPOSITORY
from images.chart import PARTS as PARTS_OF_CONFIG
from images.chart import objects
from kybernate.core.requests.placement import PlacementReason
from kybernate.core.requests.template import FAILED, TemplateReason
from kybernate.errors import KybernateError
from tests.kit.servers import prometheus
from tests.kit.servers.prometheus import DASHBOARDS, FOLDER, PANELS, RULES, meant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.servers.prometheus import Prometheus

pytestmark = pytest.mark.integration

PAGE = REPOSITORY / "docs" / "reference" / "metrics.md"
"""Generated from the services' own metrics, which `make check` holds it to."""

METRIC = re.compile(r"^- `(kyb_\w+)` \((\w+)((?:,\s+`\w+`)*)\):", re.MULTILINE)
PARTS = ("agent", "device_plugin", "extender", "webhook", "proxy", "registry", "controller")
NODES = ("n1", "n2")

WORDS: dict[str, tuple[str, ...]] = {
    "operation": ("wake", "park"),
    "phase": ("all", "restore"),
    "state": ("active", "parked"),
    "status": ("200", "503"),
    "outcome": ("done", "error"),
}
"""Words of labels that queries name. The test below finds each of them in the code."""


def metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Type and labels of each metric."""
    return {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in METRIC.findall(PAGE.read_text())
    }


class Service:
    """A service's metrics, all of them, which change as those of one that works."""

    def __init__(self, part: str) -> None:
        self.registry = CollectorRegistry()
        self._changes: list[Any] = []
        for name, (kind, labels) in metrics().items():
            if name.startswith(f"kyb_{part}_"):
                self._make(name, kind, labels)
        server, _ = start_http_server(0, "127.0.0.1", registry=self.registry)
        self.address = f"127.0.0.1:{server.server_port}"
        self._server = server

    def _make(self, name: str, kind: str, labels: tuple[str, ...]) -> None:
        made: dict[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
        metric = made[kind](name, name, labels, registry=self.registry)
        for words in itertools.product(*(WORDS.get(label, ("x",)) for label in labels)):
            one = metric.labels(*words) if words else metric
            if kind == "gauge":
                one.set(1)
            else:
                self._changes.append(one.inc if kind == "counter" else lambda o=one: o.observe(0.1))

    def work(self) -> None:
        for change in self._changes:
            change()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has read all metrics for some seconds: of two agents, and of the others."""
    services = [
        (part, node) for part in PARTS for node in (NODES if part == "agent" else NODES[:1])
    ]
    made = {Service(part): {"node": node, "pod": f"kyb-{part}-{node}"} for part, node in services}
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.2):
            for service in made:
                service.work()

    thread = threading.Thread(target=work)
    thread.start()
    targets = {service.address: labels for service, labels in made.items()}
    try:
        with prometheus.server(tmp_path_factory.mktemp("prometheus"), targets) as server:
            until = time.monotonic() + 60
            while not server.ask("kyb:proxy_errors:ratio > 0"):
                assert time.monotonic() < until, "nothing is scraped"
                time.sleep(0.5)
            # Two more scrapes: rates need two samples of each series.
            time.sleep(3)
            yield server
    finally:
        over.set()
        thread.join()
        for service in made:
            service.stop()


@pytest.mark.parametrize(
    "expression", [pytest.param(expression, id=name) for name, expression in PANELS.items()]
)
def test_no_panel_is_empty(filled: Prometheus, expression: str) -> None:
    found = filled.ask(meant(expression))
    assert found
    assert all(one["value"][1] not in ("NaN", "+Inf", "-Inf") for one in found)


@pytest.mark.parametrize(
    ("title", "low", "high"),
    [
        ("Errors", 0.49, 0.51),
        ("Seats awake", 2, 2),
        ("Seats parked", 2, 2),
        ("Wait for a wake, p99", 0.05, 0.1),
        ("Wakes, p50 and p99", 0.05, 0.1),
        ("Controllers that act", 1, 1),
        ("GPU nodes", 1, 1),
    ],
)
def test_what_a_panel_shows_is_right(
    filled: Prometheus, title: str, low: float, high: float
) -> None:
    (panel,) = (
        one for board in DASHBOARDS.values() for one in board["panels"] if one["title"] == title
    )
    for target in panel["targets"]:
        for one in filled.ask(meant(target["expr"])):
            assert low <= float(one["value"][1]) <= high, one


def test_a_query_that_names_what_is_not_there_is_empty_or_wrong(filled: Prometheus) -> None:
    assert filled.ask("sum(kyb_agent_seat)") == []
    with pytest.raises(KybernateError, match="parse error"):
        filled.ask("sum(kyb_agent_seats")


@pytest.mark.parametrize("word", sorted(set(itertools.chain(*WORDS.values())) - {"200", "503"}))
def test_words_of_labels_are_in_the_code(word: str) -> None:
    sources = (*(REPOSITORY / "nodeagent").rglob("*.py"), *(REPOSITORY / "kybernate").rglob("*.py"))
    sources = (*sources, *(REPOSITORY / "controller").rglob("*.py"))
    assert any(f'"{word}"' in path.read_text() for path in sources)


def test_the_reasons_of_a_template_that_fails_are_its_own() -> None:
    (named,) = re.findall(r'reason=~"([^"]+)"', alerts()["KybernateTemplateFails"]["expr"])
    failed = {*FAILED, TemplateReason.NO_GPUS, TemplateReason.INVALID}
    assert set(named.split("|")) == failed


def test_the_reasons_of_a_placement_that_fails_are_its_own() -> None:
    (named,) = re.findall(r'reason=~"([^"]+)"', alerts()["KybernatePlacementFails"]["expr"])
    waits = {PlacementReason.NO_ARTIFACTS, PlacementReason.COPYING, PlacementReason.WAITING}
    well = {PlacementReason.PLACED, PlacementReason.ENDED, *waits}
    assert set(named.split("|")) == set(PlacementReason) - well


def test_queries_name_no_other_words() -> None:
    asked = "\n".join(PANELS.values()) + RULES.read_text()
    for label, word in re.findall(r'(\w+)(?:!?=)"([^"]+)"', asked):
        assert word in WORDS[label], (label, word)


AGENT = 'node="n1",pod="p"'
SLOW = 'kyb_agent_wake_wait_seconds_bucket{le="%s"}'
CASES: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    "KybernateTargetDown": (
        {'up{job="kybernate",pod="p"}': "0x30"},
        {'up{job="kybernate",pod="p"}': "1x30"},
        {"job": "kybernate", "pod": "p"},
    ),
    "KybernateGpuLost": (
        {'kyb_device_plugin_gpu_healthy{gpu="g",node="n1"}': "1x5 0x25"},
        {'kyb_device_plugin_gpu_healthy{gpu="g",node="n1"}': "1x30"},
        {"gpu": "g", "node": "n1"},
    ),
    "KybernateGpuHot": (
        {'kyb_device_plugin_gpu_temperature_celsius{gpu="g",node="n1"}': "95x30"},
        {'kyb_device_plugin_gpu_temperature_celsius{gpu="g",node="n1"}': "85x30"},
        {"gpu": "g", "node": "n1"},
    ),
    "KybernateIntruder": (
        {'kyb_agent_intruders_total{cause="exec",node="n1",remedy="kill"}': "0x20 1x10"},
        {'kyb_agent_intruders_total{cause="exec",node="n1",remedy="kill"}': "1x30"},
        {"cause": "exec", "node": "n1"},
    ),
    "KybernateDevicesOpen": (
        {'kyb_agent_open_devices_total{node="n1"}': "0x20 1x10"},
        {'kyb_agent_open_devices_total{node="n1"}': "1x30"},
        {"node": "n1"},
    ),
    "KybernateParkedSeatKilled": (
        {'kyb_agent_killed_while_parked_total{cause="oom",node="n1"}': "0x20 1x10"},
        {'kyb_agent_killed_while_parked_total{cause="oom",node="n1"}': "1x30"},
        {"cause": "oom", "node": "n1"},
    ),
    "KybernateStepsFail": (
        {'kyb_agent_failures_total{operation="park",cause="disk",node="n1"}': "0x20 5x10"},
        {'kyb_agent_failures_total{operation="park",cause="disk",node="n1"}': "0x20 1x10"},
        {"operation": "park", "cause": "disk", "node": "n1"},
    ),
    "KybernateHostStalls": (
        {'kyb_agent_host_stalled_percent{node="n1"}': "50x30"},
        {'kyb_agent_host_stalled_percent{node="n1"}': "5x30"},
        {"node": "n1"},
    ),
    "KybernateJournalDamaged": (
        {'kyb_agent_journal_damaged_total{node="n1"}': "0x20 1x10"},
        {'kyb_agent_journal_damaged_total{node="n1"}': "0x30"},
        {"node": "n1"},
    ),
    "KybernateRegistryNotTold": (
        {'kyb_agent_registry_reports{node="n1"}': "3x30"},
        {'kyb_agent_registry_reports{node="n1"}': "3x15 0x15"},
        {"node": "n1"},
    ),
    "KybernateWakesSlow": (
        {SLOW % "60": "0x30", SLOW % "120": "0+5x30", SLOW % "+Inf": "0+5x30"},
        {SLOW % "60": "0+5x30", SLOW % "120": "0+5x30", SLOW % "+Inf": "0+5x30"},
        {},
    ),
    "KybernateProxyErrors": (
        {
            'kyb_proxy_requests_total{status="200"}': "0+9x30",
            'kyb_proxy_requests_total{status="503"}': "0+1x30",
        },
        {'kyb_proxy_requests_total{status="200"}': "0+9x30"},
        {},
    ),
    "KybernateNoController": (
        {'kyb_controller_leading{pod="a"}': "0x30", 'kyb_controller_leading{pod="b"}': "0x30"},
        {'kyb_controller_leading{pod="a"}': "0x30", 'kyb_controller_leading{pod="b"}': "1x30"},
        {},
    ),
    "KybernateTemplateFails": (
        {'kyb_controller_templates{reason="PodFailed"}': "1x30"},
        {
            'kyb_controller_templates{reason="PodFailed"}': "0x30",
            'kyb_controller_templates{reason="Ready"}': "3x30",
        },
        {"reason": "PodFailed"},
    ),
    "KybernatePlacementFails": (
        {'kyb_controller_placements{reason="CopyFailed"}': "2x30"},
        {
            'kyb_controller_placements{reason="CopyFailed"}': "0x30",
            'kyb_controller_placements{reason="Copying"}': "2x30",
        },
        {"reason": "CopyFailed"},
    ),
    "KybernateSpotNotice": (
        {'kyb_agent_spot_notices_total{node="n1"}': "0x20 1x10"},
        {'kyb_agent_spot_notices_total{node="n1"}': "1x30"},
        {"node": "n1"},
    ),
    "KybernateControllerFails": (
        {'kyb_controller_reconciles_total{kind="policy",outcome="error"}': "0+1x30"},
        {'kyb_controller_reconciles_total{kind="policy",outcome="done"}': "0+1x30"},
        {"kind": "policy", "outcome": "error"},
    ),
    "KybernateExtenderBlind": (
        {'kyb_extender_watches_interrupted{pod="p"}': "1x30"},
        {'kyb_extender_watches_interrupted{pod="p"}': "0x30"},
        {"pod": "p"},
    ),
    "KybernateRegistryDatabase": (
        {'kyb_registry_database_faults_total{cause="busy"}': "0x20 2x10"},
        {'kyb_registry_database_faults_total{cause="busy"}': "2x30"},
        {"cause": "busy"},
    ),
}
"""For each alert: series of half minutes with which it fires, others with which it doesn't, and its
labels."""


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_each_alert_has_a_case() -> None:
    assert set(CASES) == set(alerts())


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "is quiet"])
@pytest.mark.parametrize("name", CASES)
def test_an_alert(tmp_path: Path, name: str, fires: bool) -> None:
    loud, quiet, labels = CASES[name]
    rules = yaml.safe_load(RULES.read_text())
    rule = alerts()[name]
    told = set(re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values())))
    assert told <= set(labels), "a sentence names a label that the alert hasn't"
    for group in rules["groups"]:
        # promtool would want the whole of them.
        for one in group["rules"]:
            one.pop("annotations", None)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    expected = [{"exp_labels": {**labels, **rule["labels"]}}] if fires else []
    case = {
        "interval": "30s",
        "input_series": [{"series": k, "values": v} for k, v in (loud if fires else quiet).items()],
        "alert_rule_test": [{"eval_time": "14m", "alertname": name, "exp_alerts": expected}],
    }
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [case]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


def test_what_was_parked_is_divided_among_keys_by_their_parts_of_seats_and_adds_up(
    tmp_path: Path,
) -> None:
    had, parked = "kyb_proxy_client_seat_seconds_total", "kyb_agent_parked_gib_hours_total"
    series = {
        had + '{client="one",namespace="shop",pod="p"}': "0+6x720",
        had + '{client="one",namespace="shop",pod="q"}': "0+3x720",
        had + '{client="two",namespace="shop",pod="q"}': "0+3x720",
        had + '{client="two",namespace="lab",pod="q"}': "0+1x720",
        had + '{client="two",namespace="idle",pod="q"}': "7x720",
        parked + '{namespace="shop",node="n1"}': "0+0.5x720",
        parked + '{namespace="shop",node="n2"}': "0+0.5x720",
        parked + '{namespace="lab",node="n2"}': "0+2x720",
        parked + '{namespace="idle",node="n2"}': "0+9x720",
    }
    (tmp_path / "rules.yaml").write_text(RULES.read_text())
    name = "kyb:client_parked_gib_hours:increase1d"
    found = [("one", "shop", 540), ("two", "shop", 180), ("two", "lab", 1440)]
    samples = [
        {"labels": f'{name}{{client="{client}",namespace="{namespace}"}}', "value": value}
        for client, namespace, value in found
    ]
    case = {
        "interval": "2m",
        "input_series": [{"series": k, "values": v} for k, v in series.items()],
        "promql_expr_test": [{"expr": name, "eval_time": "24h", "exp_samples": samples}],
    }
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "30m", "tests": [case]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


def test_rules_are_well_formed() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_what_is_scraped_is_there() -> None:
    """Debian's Prometheus has no Kubernetes in it: the names that the file goes by are looked
    up."""
    jobs = yaml.safe_load((FOLDER / "scrape.yaml").read_text())["scrape_configs"]
    wanted = {rule["regex"] for job in jobs for rule in job["relabel_configs"] if "regex" in rule}
    assert wanted == {"kybernate", "probes", "kyb-proxy", "http"}
    found = [
        one for folder, _ in PARTS_OF_CONFIG for one in objects(REPOSITORY / "config" / folder)
    ]
    pods = [one["spec"]["template"] for one in found if one["kind"] in ("DaemonSet", "Deployment")]
    assert len(pods) == 9
    for pod in pods:
        ports = {port["name"] for one in pod["spec"]["containers"] for port in one.get("ports", ())}
        assert pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "kybernate"
        proxy = pod["metadata"]["labels"]["app.kubernetes.io/name"] == "kyb-proxy"
        assert ("http" if proxy else "probes") in ports


def promtool(*words: str) -> None:
    argv = [str(prometheus.ensure() / "promtool"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
