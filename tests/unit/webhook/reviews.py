"""AdmissionReviews as the API server sends them."""

from __future__ import annotations

from typing import Any


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
