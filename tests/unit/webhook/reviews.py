"""AdmissionReviews as the API server sends them."""

from __future__ import annotations

from typing import Any

from webhook import wire


def anyone(asked: wire.Eviction) -> dict[str, Any]:
    """The answer that lets every pod be evicted."""
    return wire.allow(asked.uid)


def eviction(pod: str = "a", namespace: str = "shop", **more: Any) -> dict[str, Any]:
    """The review of a pod's eviction; `more` goes into the request."""
    request = {
        "uid": "u-1",
        "kind": {"group": "policy", "version": "v1", "kind": "Eviction"},
        "subResource": "eviction",
        "operation": "CREATE",
        "dryRun": False,
        "namespace": namespace,
        "name": pod,
        "userInfo": {"username": "ann"},
        "object": {"metadata": {"namespace": namespace, "name": pod}},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {**request, **more},
    }


def review(given_pod: Any, **more: Any) -> dict[str, Any]:
    """The review of a pod's creation; `more` goes into the request."""
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "dryRun": False,
        "object": given_pod,
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {**request, **more},
    }
