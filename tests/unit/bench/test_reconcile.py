"""What is read from the metrics of the API server and of the controller."""

from __future__ import annotations

from bench.operator.reconcile import calls, quantile

ASKED = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",group="",resource="pods",verb="GET"} 3
apiserver_request_total{code="404",group="",resource="pods",verb="GET"} 2
apiserver_request_total{code="0",group="",resource="pods",verb="WATCH"} 9
apiserver_request_total{code="200",resource="leases",verb="PUT"} 7
apiserver_request_total{code="201",group="kyb.ai",resource="artifacts",verb="POST"} 1
"""


def histogram(*counts: int) -> str:
    bounds = ("0.1", "1.0", "+Inf")
    lines = [f'looks_bucket{{le="{one}"}} {n}' for one, n in zip(bounds, counts, strict=True)]
    return "\n".join([*lines, f"looks_count {counts[-1]}"])


def test_calls_are_those_that_a_controller_makes() -> None:
    assert calls(ASKED) == {"GET pods": 5.0, "POST artifacts": 1.0}


def test_a_share_is_that_of_what_came_since() -> None:
    before = histogram(100, 100, 100)
    assert quantile(histogram(199, 200, 200), before, "looks", 0.99) == 0.1
    assert quantile(histogram(150, 200, 200), before, "looks", 0.99) == 1.0
    assert quantile(histogram(100, 150, 200), before, "looks", 0.99) == float("inf")
