"""A seat is held for a checkpoint by the container runtime, and goes on as it was before."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from kybernate import keys
from kybernate.errors import DriverError
from kybernate.ports import ProcessState
from kybernate.types import SeatState, Tier
from nodeagent.api.runtimedoor import RuntimeDoor
from nodeagent.api.runtimemarks import Imaging, Marks
from nodeagent.kube.pods import PodFacts
from nodeagent.operations.operations import Kind, Operations
from nodeagent.operations.record import Ask
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine
from tests.unit.nodeagent.offload.test_lazies import woken_lazily

ACTIVE, PARKED, STARTING = SeatState.ACTIVE, SeatState.PARKED, SeatState.STARTING
MEMORY = {"GPU-0": 80 << 30, "GPU-1": 80 << 30}


class Outside:
    """Which container a process is in, and whether that is paused."""

    def __init__(self):
        self.pauses = False
        self.apart = False

    def share_ipc(self, pid, other):
        return not self.apart

    def paused(self, handle):
        return self.pauses

    def container_id_of(self, pid):
        return hashlib.sha256(str(pid).encode()).hexdigest()


def door_of(r, folder, outside=None):
    outside = outside or Outside()
    marks = Marks(folder / "containers")
    imaging = Imaging(marks, outside, outside, r.node.world.procs)
    r.loop.steps._world = r.node.world = replace(r.node.world, imaging=imaging)
    return RuntimeDoor(r.loop, r.loop.doors.on_lost, marks, imaging, outside, folder)


def container(r, uid):
    return Outside().container_id_of(r.node.seats[uid].tree.init.pid)


def facts_of(seat, ip):
    """What the API server says of the seat's pod once it has this address."""
    one = seat.identity
    return PodFacts(
        ref=one.pod,
        resource=one.resource,
        container=one.container,
        group=one.group,
        assigned_at=0.0,
        seat=one.name,
        model=one.model,
        vram=one.vram,
        image=one.image,
        port=one.port,
        has_args=one.has_args,
        ip=ip,
        deleting=False,
        over=False,
    )


@contextmanager
def imaged(folder, name):
    """kyb-runtime's lock, as runc and CRIU inherit it."""
    with (folder / "containers" / name).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def cuda(machine, uid):
    return {
        one.cuda
        for one in machine.procs.values()
        if one.uid == uid and one.cuda is not ProcessState.NO_CUDA
    }


async def test_a_seat_stands_thawed_without_gpu_memory_until_its_image_is_taken(
    rig, proxy, tmp_path
):
    r = rig()
    door, p = door_of(r, tmp_path), proxy(r.loop)
    r.begin()
    uid = await r.seat("a")
    await r.until(uid, ACTIVE)
    with imaged(tmp_path, container(r, uid)):
        assert await door.answer(("checkpoint", "1", container(r, uid))) == ("ready",)
        assert cuda(r.machine, uid) == {ProcessState.CHECKPOINTED}
        assert not r.machine.frozen
        assert uid not in r.machine.open_doors
        p.request(uid)
        await Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy).ask(
            Ask(Kind.WAKE, "now", uid)
        )
        await asyncio.sleep(100)
        assert r.state(uid) is PARKED
        assert cuda(r.machine, uid) == {ProcessState.CHECKPOINTED}
    await r.until(uid, ACTIVE, 5)
    await asyncio.sleep(1)
    assert p.answered == {uid: 1}
    assert uid in r.machine.open_doors
    assert "CheckpointLong" in [reason for reason, _ in r.seen.events]
    r.check()


async def test_a_seat_that_was_parked_is_parked_again(rig, tmp_path):
    r = rig()
    door = door_of(r, tmp_path)
    r.begin()
    uid = await r.seat("a")
    await r.until(uid, ACTIVE)
    r.loop.operators.send_away(uid, "test")
    await r.until(uid, PARKED)
    with imaged(tmp_path, container(r, uid)):
        assert await door.answer(("checkpoint", "1", container(r, uid))) == ("ready",)
        assert not r.machine.frozen
    await asyncio.sleep(5)
    assert r.state(uid) is PARKED
    assert r.machine.frozen == {r.node.seats[uid].tree.handle}
    r.check()


async def test_no_image_is_taken_before_all_memory_of_a_lazy_restore_is_in(rig, proxy, tmp_path):
    r, cold, _ = await woken_lazily(rig, proxy, "pages-late")
    door = door_of(r, tmp_path)
    await r.until(cold, ACTIVE)
    door.seat_changed(r.node.seats[cold])
    assert r.node.seats[cold].saved.paging
    assert await door.answer(("checkpoint", "1", container(r, cold))) == ("ready",)
    assert r.machine.paging == {}
    assert not r.node.seats[cold].saved.paging
    r.check()


async def test_one_whose_memory_does_not_come_in_is_refused_in_time(
    rig, proxy, tmp_path, monkeypatch
):
    monkeypatch.setattr("nodeagent.api.runtimedoor._PARK_LIMIT", 5.0)

    r, cold, _ = await woken_lazily(rig, proxy, "pages-late")
    door = door_of(r, tmp_path)
    await r.until(cold, ACTIVE)
    door.seat_changed(r.node.seats[cold])
    refused, why = await door.answer(("checkpoint", "1", container(r, cold)))
    assert refused == "refuse"
    assert "memory still comes in" in why
    await r.until(cold, ACTIVE)
    r.check()


async def test_what_the_runtime_has_paused_is_not_touched_before_it_runs_again(rig, tmp_path):
    r, outside = rig(), Outside()
    door = door_of(r, tmp_path, outside)
    r.begin()
    uid = await r.seat("a")
    await r.until(uid, ACTIVE)
    with imaged(tmp_path, container(r, uid)):
        await door.answer(("checkpoint", "1", container(r, uid)))
        outside.pauses = True
    await asyncio.sleep(10)
    assert r.state(uid) is PARKED
    assert cuda(r.machine, uid) == {ProcessState.CHECKPOINTED}
    outside.pauses = False
    await r.until(uid, ACTIVE, 5)


async def test_a_container_that_a_checkpoint_ends_leaves_its_seat(rig, tmp_path):
    r = rig()
    door = door_of(r, tmp_path)
    r.begin()
    uid = await r.seat("a")
    await r.until(uid, ACTIVE)
    name = container(r, uid)
    with imaged(tmp_path, name):
        await door.answer(("checkpoint", "1", name))
        r.machine.end_container(uid)
    await r.until(uid, SeatState.WAITING)
    assert not r.node.seats[uid].wishes.leave
    assert not (tmp_path / "containers" / name).exists()
    r.machine.start_container(uid)
    await r.until(uid, ACTIVE)


def test_a_new_agent_waits_for_the_image_that_is_being_taken(rig, tmp_path):
    machine, lock = Machine(MEMORY), ExitStack()

    async def first():
        r = rig(machine)
        door = door_of(r, tmp_path)
        r.begin()
        uid = await r.seat("a")
        await r.until(uid, ACTIVE)
        name = container(r, uid)
        lock.enter_context(imaged(tmp_path, name))
        assert await door.answer(("checkpoint", "1", name)) == ("ready",)
        return uid

    async def second(uid):
        r = rig(machine)
        door = door_of(r, tmp_path)
        await r.recover()
        await door.serve()
        await asyncio.sleep(100)
        assert not machine.frozen
        assert r.state(uid) is PARKED
        lock.close()
        await r.until(uid, ACTIVE, 5)
        door.close()
        await asyncio.sleep(0)
        r.check()

    with lock:
        uid = run_virtual(first())
        run_virtual(second(uid), start=5000.0)


def checkpointed(rig, machine):
    """A parked seat that no record knows: its record before, without what is known of its tree,
    and its container."""

    async def before():
        r = rig(machine)
        r.begin()
        uid = await r.seat("a")
        await r.until(uid, ACTIVE)
        r.loop.operators.send_away(uid, "test")
        await r.until(uid, PARKED)
        seat = r.node.seats[uid]
        return seat.record(), container(r, uid)

    record, name = run_virtual(before())
    nothing = {"state": "waiting", "init": None, "tree": None, "handle": "", "cuda": []}
    nothing |= {"started_once": False, "pod_ip": "", "address": ""}
    machine.journal[f"seat/{record['uid']}"] = record | nothing
    return record, name


@pytest.mark.parametrize("told_first", [True, False])
def test_what_is_restored_is_found_parked_and_woken_without_a_request(rig, tmp_path, told_first):
    machine = Machine(MEMORY)
    record, name = checkpointed(rig, machine)

    async def restored():
        r = rig(machine)
        door = door_of(r, tmp_path)
        if told_first:
            assert await door.answer(("restore", "1", name)) == ("ready",)
        await r.recover()
        if not told_first:
            await r.until(record["uid"], PARKED, 5)
            assert await door.answer(("restore", "1", name)) == ("ready",)
        await r.until(record["uid"], ACTIVE, 5)
        await asyncio.sleep(5)
        assert r.state(record["uid"]) is ACTIVE
        seat = r.node.seats[record["uid"]]
        r.loop.pod_changed(facts_of(seat, "10.0.0.9"))  # the kubelet may tell it late
        assert seat.contact.address == f"10.0.0.9:{seat.identity.port}"
        assert "SeatFailed" not in [reason for reason, _ in r.seen.events]
        r.check()

    run_virtual(restored(), start=5000.0)


@pytest.mark.parametrize("told", [True, False])
def test_what_wakes_on_gpus_of_another_group_is_ended(rig, proxy, tmp_path, told):
    machine = Machine(MEMORY)
    record, name = checkpointed(rig, machine)
    for process in machine.procs.values():
        process.memory = dict.fromkeys(["GPU-1"], sum(process.memory.values()))

    async def restored():
        r = rig(machine)
        door = door_of(r, tmp_path)
        if told:
            assert await door.answer(("restore", "1", name)) == ("ready",)
        await r.recover()
        if not told:
            await r.until(record["uid"], PARKED, 5)
            proxy(r.loop).request(record["uid"])
        await asyncio.sleep(5)
        assert r.state(record["uid"]) is SeatState.WAITING
        (why,) = [said for reason, said in r.seen.events if reason == "SeatFailed"]
        assert "restored onto GPU-1" in why
        assert keys.REQUIRE_GROUP in why
        assert not machine.held("GPU-1")
        r.check()

    run_virtual(restored(), start=5000.0)


def test_a_gpu_of_another_group_that_does_not_answer_is_looked_at_again(rig, tmp_path, monkeypatch):
    machine = Machine(MEMORY)
    record, name = checkpointed(rig, machine)
    for process in machine.procs.values():
        process.memory = dict.fromkeys(["GPU-1"], sum(process.memory.values()))

    async def restored():
        r = rig(machine)
        door = door_of(r, tmp_path)
        real, silent = r.node.world.gpus.processes, ["GPU-1"]

        def processes(gpu):
            if gpu in silent:
                raise DriverError("nvmlDeviceGetComputeRunningProcesses", 999, "UNKNOWN")
            return real(gpu)

        monkeypatch.setattr(r.node.world.gpus, "processes", processes)
        assert await door.answer(("restore", "1", name)) == ("ready",)
        await r.recover()
        await r.until(record["uid"], ACTIVE, 5)
        await asyncio.sleep(20)
        assert r.state(record["uid"]) is ACTIVE
        assert "GpusUnknown" in [reason for reason, _ in r.seen.events]
        silent.clear()
        await r.until(record["uid"], SeatState.WAITING, 10)
        assert "SeatFailed" in [reason for reason, _ in r.seen.events]
        r.check()

    run_virtual(restored(), start=5000.0)


async def test_what_can_not_be_checkpointed_is_refused_in_a_sentence(rig, tmp_path):
    r = rig()
    door = door_of(r, tmp_path)
    r.begin()
    uid = await r.seat("a", delay=50)
    await r.until(uid, STARTING)
    name = container(r, uid)

    async def refused():
        word, sentence = await door.answer(("checkpoint", "1", name))
        assert word == "refuse"
        return sentence

    assert "try again once it serves" in await refused()
    await r.until(uid, ACTIVE)
    r.loop.operators.send_away(uid, "evicted by a test", stays_away=True)
    assert "evicted by a test" in await refused()
    r.loop.operators.let_stay(uid)
    await r.until(uid, ACTIVE)
    name = "0" * 64
    assert "no seat of this container" in await refused()
    assert (await door.answer(("checkpoint", "2", name)))[0] == "refuse"


async def test_a_seat_below_ram_is_refused_with_its_saved_state(rig, tmp_path):
    r = rig(tiers={Tier.NVME: 1 << 40})
    door = door_of(r, tmp_path)
    r.begin()
    uid = await r.seat("a")
    await r.until(uid, ACTIVE)
    r.loop.operators.ask_for_tier(uid, Tier.NVME)
    r.loop.operators.send_away(uid, "test")
    await r.until(uid, SeatState.PARKED_NVME)
    word, sentence = await door.answer(("checkpoint", "1", container(r, uid)))
    assert word == "refuse"
    assert r.node.seats[uid].saved.artifact in sentence


async def test_system_v_memory_that_was_restored_is_refused_and_serves_on(rig, tmp_path):
    r, outside = rig(), Outside()
    door = door_of(r, tmp_path, outside)
    r.begin()
    uid = await r.seat("a")
    await r.until(uid, ACTIVE)
    outside.apart = True
    word, sentence = await door.answer(("checkpoint", "1", container(r, uid)))
    assert word == "refuse"
    assert "System V shared memory" in sentence
    assert r.state(uid) is ACTIVE
    outside.apart = False
    assert (await door.answer(("checkpoint", "1", container(r, uid))))[0] == "ready"


async def test_a_seat_that_stays_busy_is_refused_and_runs_on(rig, proxy, tmp_path):
    r = rig(drain_limit_s=1000)
    door, p = door_of(r, tmp_path), proxy(r.loop, service=500)
    r.begin()
    uid = await r.seat("a")
    await r.until(uid, ACTIVE)
    p.request(uid)
    await asyncio.sleep(0.1)
    word, sentence = await door.answer(("checkpoint", "1", container(r, uid)))
    assert (word, "not left GPU memory" in sentence) == ("refuse", True)
    await r.until(uid, ACTIVE)
    assert not r.node.seats[uid].wishes.leave


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a" * 63, "A" * 64])
async def test_what_is_no_id_becomes_no_path(rig, tmp_path, name):
    r = rig()
    door = door_of(r, tmp_path)
    assert (await door.answer(("checkpoint", "1", name)))[0] == "refuse"
    assert not list(tmp_path.rglob("*"))
