"""Single pods, as the API server and the container runtime know them now."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kybernate.api import pods
from kybernate.errors import DeadlineError, KybernateError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kybernate.ports import KubeApi
    from kybernate.types import PodRef, PodUid, SeatName
    from nodeagent.kube.pods import PodFacts
    from nodeagent.kube.publish import Publisher
    from nodeagent.seat.node import Blocking

log = logging.getLogger(__name__)

_CALL_TIMEOUT = 5.0
_CALL_DEADLINE = 15.0


class PodReader:
    """Implements `prepare.Pods`."""

    def __init__(
        self,
        api: Callable[[], Awaitable[KubeApi]],
        parse: Callable[[Any], PodFacts | None],
        publisher: Publisher,
        blocking: Blocking,
        sandboxes: Callable[[str, str], Awaitable[frozenset[PodUid]]],
    ) -> None:
        self._sandboxes = sandboxes
        self._api = api
        self._blocking = blocking
        self._parse = parse
        self._publisher = publisher

    async def read(self, namespace: str, name: str) -> PodFacts | None:
        """See `prepare.Pods`."""
        path = pods.path(namespace, name)
        try:
            api = await asyncio.wait_for(asyncio.shield(_task(self._api())), _CALL_TIMEOUT)
            pod = await self._blocking(lambda: api.get(path, timeout=_CALL_TIMEOUT), _CALL_DEADLINE)
        except (TimeoutError, DeadlineError) as error:
            raise RetryableError("the API server has not been reached yet") from error
        except RefusedError as error:
            raise RetryableError(f"the API server does not let the agent read pods: {error}") from (
                error
            )
        facts = self._parse(pod)
        return facts and replace(facts, namespace_uid=await self._namespace(api, namespace))

    async def _namespace(self, api: KubeApi, name: str) -> str:
        """Its UID: of a pod that is there the namespace is, too. Empty if it can't be had: no pod
        waits for that."""
        path = f"/api/v1/namespaces/{name}"
        try:
            found = await self._blocking(
                lambda: api.get(path, timeout=_CALL_TIMEOUT), _CALL_DEADLINE
            )
        except KybernateError as error:
            log.warning("the UID of namespace %s can't be read: %s", name, error)
            return ""
        return str((found.get("metadata") or {}).get("uid") or "")

    def mark_seat(self, facts: PodFacts, seat: SeatName) -> None:
        """See `prepare.Pods`."""
        self._publisher.mark_seat(facts, seat)

    async def started(self, namespace: str, name: str) -> frozenset[PodUid]:
        """See `prepare.Pods`."""
        return await self._sandboxes(namespace, name)

    def touch(self, pod: PodRef) -> None:
        """See `prepare.Pods`."""
        self._publisher.touch_pod(pod)


def _task(what: Awaitable[KubeApi]) -> asyncio.Future[KubeApi]:
    return asyncio.ensure_future(what)
