"""Parking and waking by driver calls: the order of calls, what follows a failure, and helpers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.adapters.cuda.driver import HELPER_COMMAND, CudaHelpers
from kybernate.adapters.cuda.helper import (
    CallError,
    Engine,
    State,
    full_map,
    processes,
    uuid_bytes,
)
from kybernate.errors import DeadlineError, DriverError
from kybernate.ports import ProcessState
from tests.unit.adapters.cuda.fake_driver import GPUS, FakeDriver

ROOT = Path(__file__).resolve().parents[4]
FAKE = (sys.executable, str(Path(__file__).with_name("fake_driver.py")))
RUNNING, LOCKED, CHECKPOINTED, FAILED = State
PIDS = (11, 12, 13)


def driver_with(state: State) -> FakeDriver:
    return FakeDriver(dict.fromkeys(PIDS, state))


def test_all_are_locked_before_any_is_checkpointed():
    driver = driver_with(RUNNING)
    phases = Engine(driver).park(PIDS, 100)
    calls = [call for call, _ in driver.calls]
    assert calls == ["lock"] * 3 + ["checkpoint"] * 3
    assert set(driver.states.values()) == {CHECKPOINTED}
    assert list(phases) == ["lock", "checkpoint"]


def test_all_are_restored_before_any_runs():
    driver = driver_with(CHECKPOINTED)
    phases = Engine(driver).wake(PIDS, {})
    assert [call for call, _ in driver.calls] == ["restore"] * 3 + ["unlock"] * 3
    assert set(driver.states.values()) == {RUNNING}
    assert driver.pairs == ()
    assert list(phases) == ["restore", "unlock", "canary"]


@given(st.tuples(*[st.sampled_from([RUNNING, LOCKED, CHECKPOINTED])] * 3))
def test_half_done_work_is_finished_from_where_each_process_is(states):
    for finish, end in (("park", CHECKPOINTED), ("wake", RUNNING)):
        driver = FakeDriver(dict(zip(PIDS, states, strict=True)))
        engine = Engine(driver)
        if finish == "park":
            engine.park(PIDS, 100)
        else:
            engine.wake(PIDS, {})
        assert set(driver.states.values()) == {end}


@pytest.mark.parametrize("code", [600, 304])
def test_a_lock_that_fails_leaves_everything_running(code):
    driver = driver_with(RUNNING)
    driver.fail("lock", 12, code)
    with pytest.raises(CallError) as caught:
        Engine(driver).park(PIDS, 100)
    assert caught.value.code == code
    assert set(driver.states.values()) == {RUNNING}


@pytest.mark.parametrize("then", [None, LOCKED, CHECKPOINTED])
def test_a_checkpoint_that_fails_is_taken_back(then):
    driver = driver_with(RUNNING)
    driver.fail("checkpoint", 12, 999, then)
    with pytest.raises(CallError):
        Engine(driver).park(PIDS, 100)
    assert set(driver.states.values()) == {RUNNING}


def test_a_checkpoint_that_ends_in_failed_leaves_that_one_failed_and_the_others_running():
    driver = driver_with(RUNNING)
    driver.fail("checkpoint", 12, 999, FAILED)
    with pytest.raises(CallError):
        Engine(driver).park(PIDS, 100)
    assert driver.states == {11: RUNNING, 12: FAILED, 13: RUNNING}


def test_what_was_parked_before_a_park_failed_stays_parked():
    driver = FakeDriver({11: CHECKPOINTED, 12: RUNNING, 13: RUNNING})
    driver.fail("checkpoint", 12, 304)
    with pytest.raises(CallError):
        Engine(driver).park(PIDS, 100)
    assert driver.states == {11: CHECKPOINTED, 12: RUNNING, 13: RUNNING}


def test_a_restore_without_memory_gives_back_what_the_others_took():
    driver = driver_with(CHECKPOINTED)
    driver.fail("restore", 12, 2)
    with pytest.raises(CallError) as caught:
        Engine(driver).wake(PIDS, {})
    assert caught.value.code == 2
    assert set(driver.states.values()) == {CHECKPOINTED}


def test_an_unlock_that_fails_is_told():
    driver = driver_with(LOCKED)
    driver.fail("unlock", 12, 401)
    with pytest.raises(CallError):
        Engine(driver).wake(PIDS, {})


@pytest.mark.parametrize("operation", ["park", "wake"])
def test_a_failed_process_is_an_error_before_anything_is_touched(operation):
    driver = driver_with(RUNNING)
    driver.states[13] = FAILED
    engine = Engine(driver)
    with pytest.raises(CallError, match="13 is FAILED"):
        engine.park(PIDS, 100) if operation == "park" else engine.wake(PIDS, {})
    assert driver.calls == []


def test_processes_without_cuda_are_passed_over():
    driver = FakeDriver({11: RUNNING})
    engine = Engine(driver)
    engine.park(PIDS, 100)
    assert engine.states(PIDS) == {11: CHECKPOINTED, 12: None, 13: None}
    engine.wake(PIDS, {})
    assert driver.states == {11: RUNNING}


def test_a_process_that_ends_meanwhile_does_not_fail_the_others():
    class Dying(FakeDriver):
        def lock(self, pid, timeout_ms):
            if pid == 12:
                del self.states[pid]
            super().lock(pid, timeout_ms)

    driver = Dying(dict.fromkeys(PIDS, RUNNING))
    Engine(driver).park(PIDS, 100)
    assert driver.states == {11: CHECKPOINTED, 13: CHECKPOINTED}


def test_a_state_that_cannot_be_asked_is_no_absence():
    class Forbidden(FakeDriver):
        def state(self, pid):
            raise CallError("cuCheckpointProcessGetState", 304, "CUDA_ERROR_OPERATING_SYSTEM")

    with pytest.raises(CallError):
        Engine(Forbidden()).park([os.getpid()], 100)


class Passing(FakeDriver):
    """Says of one process for a while that an operation goes on."""

    def __init__(self, times: int, number: int) -> None:
        super().__init__(dict.fromkeys(PIDS, RUNNING))
        self.times, self.number = times, number

    def state(self, pid):
        if pid == 12 and self.times:
            self.times -= 1
            return self.number
        return super().state(pid)


@pytest.mark.parametrize("number", [4, 5])
def test_a_state_that_passes_is_waited_for(number):
    driver = Passing(3, number)
    Engine(driver, patience=5.0).park(PIDS, 100)
    assert set(driver.states.values()) == {CHECKPOINTED}


def test_a_state_that_should_pass_and_does_not_is_a_failure():
    driver = Passing(-1, 4)
    with pytest.raises(CallError, match="12 is FAILED"):
        Engine(driver, patience=0.05).park(PIDS, 100)
    assert driver.calls == []


class Late(FakeDriver):
    """A checkpoint begun by a helper that died ends when the process is to be unlocked."""

    def unlock(self, pid):
        if pid == 12 and ("unlock", 12) not in self.calls:
            self.states[pid] = CHECKPOINTED
        super().unlock(pid)


def test_a_checkpoint_that_ends_while_it_is_undone_is_undone_too():
    driver = Late(dict.fromkeys(PIDS, LOCKED))
    Engine(driver, patience=5.0).wake(PIDS, {})
    assert set(driver.states.values()) == {RUNNING}
    assert ("restore", 12) in driver.calls


def test_a_wake_that_finds_a_failed_process_does_not_go_on():
    driver = driver_with(LOCKED)
    driver.fail("unlock", 12, 401, then=FAILED)
    with pytest.raises(CallError, match="12 is FAILED"):
        Engine(driver, patience=5.0).wake(PIDS, {})


def test_a_threads_number_stands_for_its_process_and_each_counts_once():
    started, stop = threading.Event(), threading.Event()
    numbers = []

    def run():
        numbers.append(threading.get_native_id())
        started.set()
        stop.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(10)
    assert processes([os.getpid(), numbers[0], 999_999_999]) == [os.getpid(), 999_999_999]
    stop.set()
    thread.join()


@pytest.mark.parametrize("visible", [(0,), (0, 1), (0, 1, 2, 3)])
def test_each_gpu_that_a_process_could_open_is_named_and_no_other_one(visible):
    class Isolated(FakeDriver):
        def restore(self, pid, pairs):
            if {old for old, _ in pairs} != {GPUS[index] for index in visible}:
                raise CallError("cuCheckpointProcessRestore", 1, "CUDA_ERROR_INVALID_VALUE")
            super().restore(pid, pairs)

    driver = Isolated(dict.fromkeys(PIDS, CHECKPOINTED))
    seat = {GPUS[0]: GPUS[3], GPUS[1]: GPUS[1]} if len(visible) == 2 else {GPUS[0]: GPUS[3]}
    Engine(driver).wake(PIDS, seat)
    assert set(driver.states.values()) == {RUNNING}
    assert seat.items() <= dict(driver.pairs).items()


def test_a_map_that_the_driver_takes_in_no_form_is_its_error():
    driver = driver_with(CHECKPOINTED)
    driver.fail("restore", 12, 1)
    with pytest.raises(CallError) as caught:
        Engine(driver).wake(PIDS, {GPUS[0]: GPUS[1]})
    assert caught.value.code == 1
    assert set(driver.states.values()) == {CHECKPOINTED}


@given(st.permutations(GPUS), st.sets(st.sampled_from(range(4))))
def test_a_map_of_some_gpus_becomes_one_of_all(permuted, chosen):
    given_map = {GPUS[index]: permuted[index] for index in chosen}
    pairs = full_map(GPUS, given_map)
    assert sorted(old for old, _ in pairs) == sorted(GPUS)
    assert sorted(new for _, new in pairs) == sorted(GPUS)
    assert given_map.items() <= dict(pairs).items()


def test_gpus_that_nobody_names_stay():
    swapped = full_map(GPUS, {GPUS[0]: GPUS[1]})
    assert dict(swapped) == {GPUS[0]: GPUS[1], GPUS[1]: GPUS[0], GPUS[2]: GPUS[2], GPUS[3]: GPUS[3]}


def test_the_drivers_uuid_is_that_of_nvml():
    uuid = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert uuid_bytes(uuid) == bytes(range(16))


# --- helper processes ----------------------------------------------------------------------------


@pytest.fixture
def with_helpers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(scene, command=FAKE):
        async def main():
            helpers = CudaHelpers(command)
            try:
                await scene(helpers)
            finally:
                helpers.close()

        asyncio.run(main())

    return run


def test_a_map_names_all_gpus_of_the_seat_if_any_of_them_is_another(with_helpers):
    async def scene(helpers):
        helper, told = await helpers.start("u1"), []

        async def order(deadline, **words):
            told.append(words["gpu_map"])

        helper._order = order
        await helper.wake([1], {"GPU-a": "GPU-a", "GPU-b": "GPU-c"}, 1.0)
        await helper.wake([1], {"GPU-a": "GPU-a", "GPU-b": "GPU-b"}, 1.0)
        assert told == [{"GPU-a": "GPU-a", "GPU-b": "GPU-c"}, {}]

    with_helpers(scene)


def alive(pid: int) -> bool:
    """Zombies don't count: this machine's PID 1 takes its time."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children_named(prefix: str) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "comm").read_text().startswith(prefix) and alive(int(folder.name)):
                found.add(int(folder.name))
    return found


def wait_until_gone(pids: set[int]) -> None:
    end = time.monotonic() + 5
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_helper_parks_and_wakes(with_helpers):
    async def scene(helpers):
        helper = await helpers.start("u1")
        phases = await helper.park([1, 2], lock_timeout=1, deadline=5)
        assert set(phases) == {"lock", "checkpoint"}
        states = await helper.states([1, 2], deadline=5)
        assert states == {1: ProcessState.CHECKPOINTED, 2: ProcessState.CHECKPOINTED}
        phases = await helper.wake([1, 2], {}, deadline=5)
        assert set(phases) == {"restore", "unlock", "canary"}
        assert set((await helper.states([1, 2], deadline=5)).values()) == {ProcessState.RUNNING}

    with_helpers(scene)


def test_a_driver_error_carries_the_drivers_code_and_the_helper_lives_on(with_helpers):
    async def scene(helpers):
        helper = await helpers.start("u1")
        with pytest.raises(DriverError) as caught:
            await helper.park([601], lock_timeout=1, deadline=5)
        assert (caught.value.call, caught.value.code) == ("lock", 600)
        assert await helper.states([601], deadline=5) == {601: ProcessState.RUNNING}

    with_helpers(scene)


def test_a_hung_driver_call_ends_the_helper_at_its_deadline(with_helpers):
    async def scene(helpers):
        helper = await helpers.start("u1")
        (pid,) = children_named("kyb-cuda-u1")
        with pytest.raises(DeadlineError, match=r"states within 0\.05 s"):
            await helper.states([9000], deadline=0.05)
        wait_until_gone({pid})
        with pytest.raises(DeadlineError, match="ended"):
            await helper.states([1], deadline=1)
        again = await helpers.start("u1")
        assert await again.states([1], deadline=5) == {1: ProcessState.RUNNING}

    with_helpers(scene)


def test_a_helper_that_dies_is_told_from_an_answer(with_helpers):
    async def scene(helpers):
        helper = await helpers.start("u1")
        with pytest.raises(DeadlineError, match="died during states"):
            await helper.states([9001], deadline=5)

    with_helpers(scene)


def test_one_call_at_a_time(with_helpers):
    async def scene(helpers):
        helper = await helpers.start("u1")
        first = asyncio.create_task(helper.states([9000], deadline=60))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineError, match="busy"):
            await helper.states([1], deadline=1)
        helper.kill()
        helper.kill()
        with pytest.raises(DeadlineError, match="died"):
            await first

    with_helpers(scene)


def test_a_cancelled_call_ends_the_helper(with_helpers):
    async def scene(helpers):
        helper = await helpers.start("u1")
        (pid,) = children_named("kyb-cuda-u1")
        task = asyncio.create_task(helper.states([9000], deadline=60))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wait_until_gone({pid})

    with_helpers(scene)


def test_every_seat_has_a_process_of_its_own_and_none_is_left(with_helpers):
    seen: set[int] = set()

    async def scene(helpers):
        for number in range(8):
            await helpers.start(f"x{number}")
        seen.update(children_named("kyb-cuda-x"))
        assert len(seen) == 8

    with_helpers(scene)
    wait_until_gone(seen)


def test_a_dead_mother_takes_her_helpers_along_and_is_replaced(with_helpers):
    async def scene(helpers):
        helper = await helpers.start("u1")
        helpers._mother.kill()
        with pytest.raises(DeadlineError, match="died"):
            await helper.states([9000], deadline=5)
        again = await helpers.start("u2")
        assert await again.states([1], deadline=5) == {1: ProcessState.RUNNING}

    with_helpers(scene)


def test_helpers_die_with_the_agent(with_helpers):
    code = (
        "import asyncio, sys, time\n"
        "from kybernate.adapters.cuda.driver import CudaHelpers\n"
        "async def main():\n"
        f"    helpers = CudaHelpers({FAKE!r})\n"
        "    await helpers.start('y1')\n"
        "    print('up', flush=True); time.sleep(600)\n"
        "asyncio.run(main())\n"
    )

    async def scene(helpers):
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        assert await agent.stdout.readline() == b"up\n"
        pids = children_named("kyb-cuda-y")
        assert len(pids) == 1
        agent.send_signal(signal.SIGKILL)
        await agent.wait()
        wait_until_gone(pids)

    with_helpers(scene)


def test_a_round_trip_takes_less_than_a_millisecond(with_helpers):
    async def scene(helpers):
        helper = await helpers.start("u1")
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            await helper.states([1], deadline=5)
            times.append(time.perf_counter() - begin)
        assert sorted(times)[100] < 0.001

    with_helpers(scene)


def test_without_a_driver_the_start_says_so(with_helpers):
    driver = pytest.importorskip("cuda.bindings.driver")
    with contextlib.suppress(RuntimeError):
        driver.cuInit(0)
        pytest.skip("this machine has a driver")

    async def scene(helpers):
        with pytest.raises(DriverError, match="cuInit"):
            await helpers.start("u1")

    with_helpers(scene, HELPER_COMMAND)


def test_the_names_of_states_are_the_ports():
    assert [ProcessState[state.name] for state in State] == list(
        itertools.islice(ProcessState, len(State))
    )


def test_a_map_from_another_nodes_gpus_is_whole_as_it_is():
    foreign = b"\xee" * 16
    assert full_map(GPUS, {foreign: GPUS[1]}) == ((foreign, GPUS[1]),)
