from __future__ import annotations

import pytest

from sidecar.options import Options, Probe, UsageError, parse


def test_all_that_the_webhook_writes_is_read():
    found = parse(
        [
            "--socket=/x/init.sock",
            "--liveness=http:8000:timeout=2:grace=300",
            "--readiness=grpc:50051",
            "--startup=tcp:8000:timeout=0.5",
            "--cooperate=vllm:8000",
        ]
    )
    assert found == Options(
        "/x/init.sock",
        [
            Probe("liveness", "http", 8000, 2.0, 300.0),
            Probe("readiness", "grpc", 50051),
            Probe("startup", "tcp", 8000, 0.5),
        ],
        "vllm",
        8000,
    )
    assert [probe.listen for probe in found.probes] == [15480, 15481, 15482]


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("liveness=http:1", "--NAME=VALUE"),
        ("--liveness", "--NAME=VALUE"),
        ("--what=1", "unknown"),
        ("--liveness=exec:1", "kind"),
        ("--liveness=http:0", "port"),
        ("--liveness=http:65536", "port"),
        ("--liveness=http:x", "port"),
        ("--liveness=http:1:timeout=x", "timeout"),
        ("--liveness=http:1:limit=1", "timeout"),
        ("--cooperate=tgi:1", "engine"),
        ("--cooperate=vllm", "port"),
    ],
)
def test_what_can_not_be_used_is_named(argument, says):
    with pytest.raises(UsageError, match=says):
        parse([argument])
