"""Whether somebody has asked for a pod that the controller makes: it may make no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.restoring.copies import request_of, why_not_asked
from kybernate.api.restoring.requests import read_restore
from kybernate.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api

    Json = dict[str, Any]

_CALL_S = 2.0
"""The API server waits 5 s for an answer."""


class Asked:
    """RestoreRequests as the API server has them now: a watch may be late, and one call for a pod
    that is made for minutes is cheap."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def unasked(self, pod: Json) -> str:
        """Why this pod is not what a request asks for, in a sentence; empty if it is. Raises
        RetryableError if that can't be asked now."""
        namespace, name = pod["metadata"].get("namespace") or "", request_of(pod)
        if not name:
            return f"{keys.MADE_FOR} names no RestoreRequest"
        path = f"/apis/{keys.API_VERSION}/namespaces/{namespace}/restorerequests/{name}"
        try:
            request = read_restore(self._api.get(path, timeout=_CALL_S))
        except (NotFoundError, ConfigError) as error:
            return str(error)
        return why_not_asked(request, pod)
