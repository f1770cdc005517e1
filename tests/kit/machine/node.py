"""CDI files, the kubelet's and the runtime's word, and calls that don't block."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kybernate.errors import NotFoundError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kybernate.ports import Holder, ImageCommand, SeatSpec
    from kybernate.types import PodUid
    from tests.kit.machine.world import Machine

T = TypeVar("T")


class FakeSpecs:
    """Implements `ports.Specs`. Faults: no-vendor-spec, shut-devices, devices-open. `released` are
    the processes 1 that were let to their GPUs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.released: set[int] = set()

    def write(self, device_id: str, spec: SeatSpec) -> str:
        """Kept."""
        if self._machine.fault("no-vendor-spec"):
            raise RetryableError("there is no nvidia.yaml yet")
        self._machine.specs[device_id] = spec
        shut = spec.pod is None or not self._machine.fault("devices-open")
        return "" if shut else "it has no cgroup yet"

    def remove(self, device_id: str) -> None:
        """Dropped."""
        self._machine.specs.pop(device_id, None)

    async def release(
        self,
        device_id: str,
        init: int,
        is_there: Callable[[], bool],
        deadline: float,
        *,
        stays: bool = False,
    ) -> None:
        """Written down."""
        if self._machine.fault("shut-devices"):
            raise OSError(1, "Operation not permitted")
        self.released.add(init)

    async def shut(
        self, device_id: str, init: int, is_there: Callable[[], bool], deadline: float
    ) -> None:
        """Written down."""
        self.released.discard(init)

    def ids(self) -> frozenset[str]:
        """All kept."""
        return frozenset(self._machine.specs)


class FakePodResources:
    """Implements `ports.PodResources`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def holder(self, resource: str, device_ids: Sequence[str]) -> Holder:
        """Who holds the first of them."""
        try:
            return self._machine.holders[device_ids[0]]
        except KeyError:
            raise NotFoundError(f"nobody holds {device_ids[0]}") from None

    async def held(self) -> Mapping[str, Holder]:
        """All."""
        return dict(self._machine.holders)


class FakeImages:
    """Implements `ports.Images`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def command_of(self, image: str) -> ImageCommand:
        """As set."""
        try:
            return self._machine.images[image]
        except KeyError:
            raise NotFoundError(f"image {image} is not on this node") from None

    async def digest_of(self, uid: PodUid, container: str) -> str:
        """All run the same."""
        return "sha256:1"


async def inline(call: Callable[[], T], deadline: float) -> T:
    """A blocking call, made at once: fakes don't block."""
    return call()
