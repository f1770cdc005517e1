"""A real Prometheus of Debian's, on loopback, with our rules; and its promtool."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import requests
import yaml

from bench.processes import free_port
from images import debs
from images.cache import REPOSITORY, silent
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from images.cache import Progress

PACKAGES = debs.DebSet("prometheus", "bookworm", (("prometheus", "2.42.0+ds-5+deb12u1"),))
FOLDER = REPOSITORY / "config" / "monitoring"
RULES = FOLDER / "rules.yaml"
DASHBOARDS: dict[str, Any] = {
    path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "dashboards").iterdir())
}
PANELS: dict[str, str] = {
    f"{name}: {panel['title']} {target['refId']}": target["expr"]
    for name, board in DASHBOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
}
"""Our dashboards' queries, by the panels that show them."""

_STARTS = 30.0
_SCRAPE_S = 1


def ensure(progress: Progress = silent) -> Path:
    """The folder of `prometheus` and `promtool`. Raises KybernateError."""
    return debs.unpack(PACKAGES, progress).folder / "usr/bin"


def meant(expression: str) -> str:
    """The query as Grafana would send it, of all nodes and the last seconds."""
    return expression.replace("$__rate_interval", "10s").replace("$node", ".*")


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression is now. Raises KybernateError with what is wrong."""
        query = {"query": expression}
        answer = requests.get(f"{self.url}/api/v1/query", query, timeout=10)
        if answer.status_code != 200:
            raise KybernateError(f"{expression}: {answer.text}")
        found = answer.json()
        result: list[dict[str, Any]] = found["data"]["result"]
        return result


@contextmanager
def server(folder: Path, targets: Mapping[str, Mapping[str, str]]) -> Iterator[Prometheus]:
    """A server with our rules that scrapes the targets, host:port with the labels that they get,
    each second."""
    binaries, port = ensure(), free_port()
    jobs = [{"targets": [address], "labels": dict(labels)} for address, labels in targets.items()]
    told = {
        "global": {"scrape_interval": f"{_SCRAPE_S}s", "evaluation_interval": f"{_SCRAPE_S}s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "kybernate", "static_configs": jobs}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(told))
    argv = [
        *(str(binaries / "prometheus"), f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        _await(process, f"http://127.0.0.1:{port}", folder / "prometheus.log")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + _STARTS
    while time.monotonic() < until and process.poll() is None:
        try:
            if requests.get(f"{url}/-/ready", timeout=1).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(0.1)
    raise KybernateError(f"Prometheus doesn't answer: {log.read_text()[-500:]}")
