"""A pod deleted and made anew under its name, as StatefulSets do, in every order of events.

The kubelet's list of devices carries names and no UIDs. Whatever happens between the agent's four
looks (devices, pod, sandboxes, devices), a container never gets the group of another pod.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kybernate.errors import KybernateError, NotFoundError
from kybernate.ports import Holder
from kybernate.types import GroupName, PodRef, PodUid
from nodeagent.api.prepare import Preparer
from nodeagent.kube.pods import PodCache, PodFacts
from tests.kit.clock import run_virtual

RESOURCE = "kyb.ai/gpu-1x-seat"
GROUPS = {"old": "G0", "new": "G1"}


@dataclass
class World:
    """API server, kubelet and runtime around one name. Each read lets some events happen first."""

    events: list[str]
    pauses: list[int]
    same_id: bool
    in_api: str | None = "old"
    devices: dict[str, str] = field(default_factory=lambda: {"old": "G0-seat-1"})
    sandboxes: set[str] = field(default_factory=lambda: {"old"})

    def look(self) -> None:
        for _ in range(self.pauses.pop() if self.pauses else 0):
            self.step()

    def step(self) -> bool:
        """The next event that can happen now; False if there is none."""
        for event in self.events:
            if self._possible(event):
                self.events.remove(event)
                getattr(self, event)()
                return True
        return False

    def _possible(self, event: str) -> bool:
        return {
            "delete": True,
            "create": self.in_api is None,
            "stop_old": self.in_api != "old",
            "free_old": "old" not in self.sandboxes,
            "admit_new": self.in_api == "new" and not (self.same_id and "old" in self.devices),
            "start_new": "new" in self.devices,
        }[event]

    def delete(self) -> None:
        self.in_api = None

    def create(self) -> None:
        self.in_api = "new"

    def stop_old(self) -> None:
        self.sandboxes.discard("old")

    def free_old(self) -> None:
        self.devices.pop("old", None)

    def admit_new(self) -> None:
        self.devices["new"] = "G0-seat-1" if self.same_id else "G1-seat-1"

    def start_new(self) -> None:
        self.sandboxes.add("new")


class Kubelet:
    """Implements `ports.PodResources`: names only."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def holder(self, resource, device_ids):
        self.world.look()
        if device_ids[0] not in self.world.devices.values():
            raise NotFoundError("nobody")
        return Holder("default", "web-0", "main")

    async def held(self):
        self.world.look()
        return {one: Holder("default", "web-0", "main") for one in self.world.devices.values()}


class Pods:
    """Implements `prepare.Pods`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.touched: list[str] = []

    async def read(self, namespace, name):
        self.world.look()
        if self.world.in_api is None:
            raise NotFoundError("no such pod")
        return facts(self.world.in_api)

    async def started(self, namespace, name):
        self.world.look()
        return frozenset(PodUid(uid) for uid in self.world.sandboxes)

    def mark_seat(self, facts, seat):
        pass

    def touch(self, pod):
        self.touched.append(pod.uid)


def facts(uid: str) -> PodFacts:
    return PodFacts(
        ref=PodRef("default", "web-0", PodUid(uid)),
        resource=RESOURCE,
        container="main",
        group=GroupName(GROUPS[uid]),
        assigned_at=0.0,
        seat=None,
        model="",
        vram=None,
        image="img",
        port=8000,
        has_args=False,
        ip="",
        deleting=False,
        over=False,
    )


EVENTS = ["delete", "create", "stop_old", "free_old", "admit_new", "start_new"]


@given(
    order=st.permutations(EVENTS),
    before=st.integers(0, 6),
    pauses=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    same_id=st.booleans(),
)
@settings(
    max_examples=400,
    # `rig` is a class
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_order_of_events_gives_a_container_another_pods_group(
    rig, order, before, pauses, same_id
):
    run_virtual(_one(rig, World(list(order), list(pauses), same_id), before))


async def _one(rig, world, before):
    r = rig()
    r.begin()
    object.__setattr__(r.node.world, "pod_resources", Kubelet(world))
    pods = Pods(world)
    cache = PodCache(r.loop.pod_changed, r.loop.pod_gone)
    preparer = Preparer(r.loop, cache, pods, Path("/x/kyb-init-1"))
    for _ in range(before):
        world.step()
    for _ in range(2):
        # The kubelet prepares a container of a pod that has its device and its sandbox.
        for uid in sorted(world.sandboxes & set(world.devices)):
            if uid in world.devices:
                await _prepare(r, world, preparer, uid)
    while world.step():
        pass
    assert await _prepare(r, world, preparer, "new"), "when all is over the new pod gets its seat"
    await _quiet(preparer)


async def _prepare(r, world, preparer, uid):
    """Whether it went well; if the container is still to be created then, its group is right."""
    device = world.devices[uid]
    try:
        await preparer.prepare(RESOURCE, [device])
    except KybernateError:
        return False
    if uid in world.sandboxes and world.devices.get(uid) == device:
        assert r.machine.specs[device].env["KYB_GPU_GROUP"] == GROUPS[uid]
        assert r.machine.specs[device].mounts["/run/kyb"].endswith(f"/{uid}")
        assert r.node.seats[PodUid(uid)].identity.device_id == device
    return True


async def _quiet(preparer):
    for task in [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        task.cancel()
    await asyncio.sleep(0)
