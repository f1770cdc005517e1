"""What the registry is told of this node, in order, and over restarts of the agent.

Nobody waits for it: a registry that is away hears of everything once it is back. What it then says
no to is logged and left, since it is an index of what is there, and the places are the truth. Where
what is to be said of an artifact can't be read, its pod's reports wait for that, and no other's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass
from kybernate.errors import (
    ConflictError,
    CorruptError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.retry import Pauses, quietly, retry
from kybernate.types import ArtifactId, PodUid, Tier, of_record
from nodeagent import metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.ports import Journal, Registry
    from kybernate.types import PodRef

log = logging.getLogger(__name__)

REPORT = "report/"
"""Journal keys of what is yet to be told."""

LEASE_S = 60.0
DEADLINE = 10.0
_PAUSE = (0.2, 30.0)
_READS = Pauses(1.0, 30.0)
NO_POD = PodUid("")


_LATER = (DeadlineError, RetryableError, OSError)


class Kind(StrEnum):
    """What has happened."""

    SEALED = "sealed"
    COPYING = "copying"
    COPIED = "copied"
    DROPPED = "dropped"
    STOPPED = "stopped"
    CLAIMED = "claimed"


@dataclass(frozen=True, slots=True)
class Report:
    """One thing to tell: of an artifact in a tier, or of the pod `uid` in `namespace`. `why` it was
    dropped, or has stopped; `successor` is the pod that continues with its state. `hands_back`: the
    pod with whose state one that has stopped was to continue, and never has. `person_hold`: of a
    sealed one, that people keep it there; an agent of 0.2.0 that reads it tells of the copy alone.
    `pod`: the name of the pod that has stopped, where it is known.
    """

    kind: Kind
    namespace: str = ""
    uid: PodUid = NO_POD
    artifact: str = ""
    tier: str = ""
    why: str = ""
    successor: PodUid = NO_POD
    hands_back: PodUid = NO_POD
    person_hold: bool = False
    pod: str = ""

    @property
    def whose(self) -> frozenset[str]:
        """The pods that it is about: by their UIDs, and by namespace and name, as in the names of
        their artifacts. Of one that isn't named here, its namespace."""
        name = self.artifact.partition("@")[0]
        if self.kind is Kind.STOPPED:
            known = self.pod and not self.hands_back
            name = f"{self.namespace}/{self.pod if known else ''}"
        return frozenset({name, self.uid, self.successor, self.hands_back}) - {""}


class ReportQueue:
    """What is yet to be told, and who tells it. `manifest`: what is said of an artifact, within
    seconds."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        manifest: Callable[[ArtifactId, float], Awaitable[Manifest]],
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._manifest = manifest
        self._queue: dict[int, Report] = {}
        # What could not be read for at once; kept until it is told.
        self._reading: dict[int, asyncio.Task[Manifest]] = {}
        self._last = 0
        self._tokens: dict[tuple[str, PodUid], int] = {}
        self._came = asyncio.Event()

    def load(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """What the last agent had yet to tell; before anything new is put."""
        told = (key for key in records if key.startswith(REPORT))
        for number in sorted(int(key.removeprefix(REPORT)) for key in told):
            record = records[_key(number)]
            self._queue[number] = of_record(Report, {**record, "kind": Kind(record["kind"])})
            self._last = number
        self._came.set()

    def put(self, report: Report) -> None:
        """To be told soon. Journalled in order with all else, so before what follows it."""
        self._last += 1
        self._queue[self._last] = report
        self._journal.put(_key(self._last), asdict(report), synced=False)
        metrics.REPORTS.set(len(self._queue))
        self._came.set()

    async def hold(self, namespace: str, uid: PodUid) -> None:
        """Have the registry know that the pod is this node's. Raises ConflictError if it isn't any
        more, DeadlineError, RefusedError."""
        self._tokens[namespace, uid] = await self._registry.lease(namespace, uid, LEASE_S, DEADLINE)

    async def flush(self, deadline: float, of: PodRef | None = None) -> None:
        """Return once all that was put before is told, or what of it is about the pod `of`. Raises
        DeadlineError."""
        last = self._last

        async def told() -> None:
            while self._has(last, of):  # noqa: ASYNC110 - rare, and short
                await asyncio.sleep(_PAUSE[0] / 10)

        try:
            await asyncio.wait_for(told(), deadline)
        except TimeoutError as error:
            raise DeadlineError(
                f"the registry was not told of {len(self._queue)} things in {deadline:g} s"
            ) from error

    async def run(self) -> None:
        """Tell one thing after the other, for ever."""
        pause = _PAUSE[0]
        try:
            while True:
                number = self._next()
                if number is None:
                    await self._came.wait()
                    self._came.clear()
                elif await self._tell(number):
                    pause = _PAUSE[0]
                    self._done(number)
                elif not self._is_read(number):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSE[1])
        finally:
            for reading in self._reading.values():
                reading.cancel()

    def _next(self) -> int | None:
        """The first that is about no pod of one which is still read for."""
        behind: set[str] = set()
        for number, report in self._queue.items():
            if self._is_read(number) or _is_about(report, behind):
                behind |= report.whose
            else:
                return number
        return None

    def _is_read(self, number: int) -> bool:
        reading = self._reading.get(number)
        return reading is not None and not reading.done()

    def _has(self, last: int, of: PodRef | None) -> bool:
        """Whether one up to this number is yet to be told: any, or one of the pod's."""
        before = (report for number, report in self._queue.items() if number <= last)
        pods = {of.uid, f"{of.namespace}/{of.name}"} if of is not None else None
        return any(pods is None or _is_about(report, pods) for report in before)

    def _done(self, number: int) -> None:
        del self._queue[number]
        self._reading.pop(number, None)
        self._journal.delete(_key(number))
        metrics.REPORTS.set(len(self._queue))

    async def _tell(self, number: int) -> bool:
        """Whether there is an answer."""
        report = self._queue[number]
        try:
            await self._send(number, report)
        except _LATER as error:
            log.info("the registry can't be told yet that %s: %s", _what(report), error)
            return False
        except (ConflictError, NotFoundError, RefusedError, CorruptError) as error:
            log.warning("the registry does not take it that %s: %s", _what(report), error)
        except KybernateError as error:
            log.warning("the registry can't be told that %s: %s", _what(report), error)
        return True

    async def _read(self, number: int, artifact: ArtifactId) -> Manifest:
        """What is said of it. Raises as `manifest`; what may be read later is read on aside."""
        if (reading := self._reading.get(number)) is not None:
            return reading.result()
        try:
            return await self._manifest(artifact, DEADLINE)
        except _LATER as error:
            log.warning("%s can't be read, so its pod's reports wait: %s", artifact, error)
            reading = asyncio.create_task(
                retry(lambda: self._manifest(artifact, DEADLINE), quietly, _LATER, pauses=_READS)
            )
            reading.add_done_callback(lambda _: self._came.set())
            self._reading[number] = reading
            raise

    async def _send(self, number: int, report: Report) -> None:
        artifact, tier = ArtifactId(report.artifact), Tier(report.tier or Tier.NVME)
        match report.kind:
            case Kind.STOPPED:
                await self._stop(report)
            case Kind.DROPPED:
                with contextlib.suppress(NotFoundError):  # then it is told already
                    await self._registry.drop(artifact, tier, DEADLINE, forget=report.why)
            case Kind.CLAIMED:
                pod = report.namespace, report.uid
                await self._registry.claim(*pod, artifact, report.successor, DEADLINE, again=True)
            case Kind.SEALED:
                manifest = await self._read(number, artifact)
                await self._record(manifest, tier, person_hold=report.person_hold)
            case Kind.COPYING | Kind.COPIED:
                manifest = await self._read(number, artifact)
                verified = report.kind is Kind.COPIED
                await self._registry.report(manifest, tier, DEADLINE, verified=verified)

    async def _stop(self, report: Report) -> None:
        pod = report.namespace, report.uid
        # In one with its stop: nobody may take it for one that has continued.
        handed = await self._hand_back(report)
        try:
            await self._registry.stop(*pod, report.why, DEADLINE)
        except RefusedError:
            # It does not know yet that the pod ran here.
            await self._registry.lease(*pod, LEASE_S, DEADLINE)
            await self._registry.stop(*pod, report.why, DEADLINE)
        self._tokens.pop(pod, None)
        if not handed:
            # A registry of 0.2.0 takes it once it knows of the stop.
            await self._hand_back(report)

    async def _hand_back(self, report: Report) -> bool:
        """Whether it holds no claim any more with which it never continued."""
        if not report.hands_back:
            return True
        try:
            await self._registry.hand_back(
                report.namespace, report.hands_back, report.uid, DEADLINE
            )
        except (ConflictError, RefusedError, NotFoundError) as error:
            log.debug("%s hands no claim back: %s", _what(report), error)
            return False
        return True

    async def _record(self, manifest: Manifest, tier: Tier, *, person_hold: bool) -> None:
        pod = manifest.facts.namespace, PodUid(manifest.facts.pod_uid)
        if pod in self._tokens:
            try:
                await self._registry.record(
                    manifest, tier, self._tokens[pod], DEADLINE, person_hold=person_hold
                )
            except ConflictError as error:
                log.info("a new lease is taken for pod %s/%s: %s", *pod, error)
            else:
                return
        self._tokens[pod] = await self._registry.lease(*pod, LEASE_S, DEADLINE)
        await self._registry.record(
            manifest, tier, self._tokens[pod], DEADLINE, person_hold=person_hold
        )


async def no_manifest(artifact: ArtifactId, deadline: float) -> Manifest:
    """Where there is no registry to be told of artifacts."""
    raise NotFoundError(f"nobody is told of {artifact}")


def _is_about(report: Report, pods: Collection[str]) -> bool:
    """Whether it is about one of these pods, or may be: of a namespace alone nobody knows."""
    whose = report.whose
    if any(pod in whose for pod in pods):
        return True
    unnamed = tuple(one for one in whose if one.endswith("/"))
    return bool(unnamed) and any(pod.startswith(unnamed) for pod in pods)


def _key(number: int) -> str:
    return f"{REPORT}{number:016d}"


def _what(report: Report) -> str:
    what = report.artifact or f"pod {report.namespace}/{report.uid}"
    return f"{what} is {report.kind}{f' ({report.tier})' if report.tier else ''}"
