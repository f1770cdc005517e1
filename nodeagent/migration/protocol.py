"""Between the parts of a state and the messages that carry them from agent to agent."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from kybernate.checkpoint.raw.stream import Same, Whole, Written
from kybernate.core.chunks.pace import Pace
from kybernate.errors import ConfigError, KybernateError
from kybernate.gen import peers_pb2 as pb
from kybernate.types import PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.checkpoint.raw.stream import Part
    from kybernate.ports import Handover

_BATCH = 3 << 20
_MOST = 256
"""Bytes of state, and parts, that one message carries at most: each message costs several hops
between threads at either end, whatever it carries."""


def handover_message(to: Handover, size: int = 0) -> pb.Handover:
    """Whose state goes to whom; `size`: about how many bytes will come."""
    return pb.Handover(
        namespace=to.pod.namespace,
        pod=to.pod.name,
        uid=to.pod.uid,
        successor_uid=to.successor.uid,
        bytes=size,
    )


def pod_of(message: pb.Handover) -> PodRef:
    """Whose state it is. Raises ConfigError for one without a name."""
    for field in ("namespace", "pod", "uid", "successor_uid"):
        if not getattr(message, field):
            raise ConfigError(f"handover.{field}", "is missing")
    return PodRef(message.namespace, message.pod, PodUid(message.uid))


def part_message(part: Part) -> pb.Part:
    """A part, as it is sent."""
    match part:
        case Written(file, offset, data):
            return pb.Part(written=pb.Written(file=file, offset=offset, data=data))
        case Same(file, offset, source, start, size):
            same = pb.Same(file=file, offset=offset, source=source, start=start, size=size)
            return pb.Part(same=same)
        case Whole(file, size):
            return pb.Part(whole=pb.Whole(file=file, size=size))


def part_of(message: pb.Part) -> Part:
    """A part, as it came. Raises ConfigError for one that is none."""
    match message.WhichOneof("kind"):
        case "written":
            one = message.written
            return Written(one.file, one.offset, one.data)
        case "same":
            of = message.same
            return Same(of.file, of.offset, of.source, of.start, of.size)
        case "whole":
            return Whole(message.whole.file, message.whole.size)
        case other:
            raise ConfigError("part", f"{other or 'an empty message'} can't come here")


def _batches(parts: Iterator[Part]) -> Iterator[tuple[list[Part], int]]:
    """As many parts as a message takes, and how many bytes of state are in them."""
    batch: list[Part] = []
    size = 0
    for part in parts:
        more = len(part.data) if isinstance(part, Written) else 0
        if batch and (size + more > _BATCH or len(batch) == _MOST):
            yield batch, size
            batch, size = [], 0
        batch.append(part)
        size += more
    if batch:
        yield batch, size


class Pump:
    """The messages of one stream, as gRPC's thread takes them; `problem` is what ended them early,
    `sent` the bytes of state in them."""

    def __init__(self, opening: pb.Opening, parts: Iterator[Part], pace: Pacer) -> None:
        self._opening = opening
        self._parts = parts
        self._pace = pace
        self.problem: BaseException | None = None
        self.sent = 0

    def messages(self) -> Iterator[pb.Parts]:
        """All of them, each no sooner than the rate allows."""
        yield pb.Parts(opening=self._opening)
        try:
            for parts, size in _batches(self._parts):
                self._pace.wait(size)
                self.sent += size
                yield pb.Parts(parts=map(part_message, parts))
        except (KybernateError, OSError) as error:
            self.problem = error
            raise


class Pacer:
    """One limit of bytes per second for all streams of an agent, 0.0 for none."""

    def __init__(
        self,
        rate: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pace = Pace(rate)
        self._now, self._sleep = now, sleep
        self._lock = threading.Lock()

    def wait(self, size: int) -> None:
        """Until that many bytes may go."""
        with self._lock:
            pause = self._pace.reserve(size, self._now())
        if pause:
            self._sleep(pause)
