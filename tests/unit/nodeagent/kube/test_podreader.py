"""What the agent asks the API server of one pod."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.errors import RefusedError, RetryableError
from nodeagent.kube.podreader import PodReader
from nodeagent.kube.pods import read_pod

if TYPE_CHECKING:
    from nodeagent.kube.pods import PodFacts


POD = {
    "metadata": {
        "name": "a",
        "namespace": "default",
        "uid": "u-a",
        "labels": {"kyb.ai/managed": "true"},
        "annotations": {"kyb.ai/group": "G0"},
    },
    "spec": {
        "containers": [
            {"name": "main", "image": "x", "resources": {"limits": {"kyb.ai/gpu-1x-seat": "1"}}}
        ]
    },
    "status": {},
}


class Api:
    """Answers by path; an error is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def get(self, path: str, **_more: object) -> Any:
        found = self.answers["pod" if "/pods/" in path else "namespace"]
        if isinstance(found, Exception):
            raise found
        return found


def read(**answers: Any) -> PodFacts | None:
    async def api() -> Any:
        return Api(**answers)

    async def blocking(call: Any, _deadline: float) -> Any:
        return call()

    reader = PodReader(api, read_pod, None, blocking, None)  # type: ignore[arg-type]
    return asyncio.run(reader.read("default", "a"))


def test_its_namespaces_uid_is_read_with_it() -> None:
    found = read(pod=POD, namespace={"metadata": {"uid": "u1"}})
    assert found is not None
    assert found.namespace_uid == "u1"


@pytest.mark.parametrize("error", [RefusedError("may not"), RetryableError("away")])
def test_no_pod_waits_for_it(error: Exception) -> None:
    found = read(pod=POD, namespace=error)
    assert found is not None
    assert found.namespace_uid == ""


def test_a_pod_without_a_seat_is_none() -> None:
    assert read(pod={"metadata": {"name": "a"}, "spec": {}}) is None
