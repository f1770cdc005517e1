"""Seat sockets: frames, who may speak for a seat, and callers that send anything at all."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kybernate.adapters.container.seatsocket import (
    FRAME_LIMIT,
    FrameReader,
    ProtocolError,
    SeatSockets,
    encode,
)
from kybernate.errors import ConfigError, NotFoundError, RefusedError
from kybernate.ports import CooperationPhase, GateHello, GatePhase
from tests.kit.inits import EveryInit

UID = "0f9c2d1e-8a3b-4c5d-9e6f-0123456789ab"
LIMIT = 60.0
field = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


class Peers:
    """This test's own process plays every process of a pod."""

    def __init__(self) -> None:
        self.pod = UID
        self.gone = False

    def pod_uid_of(self, pid):
        assert pid == os.getpid()
        if self.gone:
            raise NotFoundError("gone")
        return self.pod


class Listener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()

    def on_hello(self, uid, hello):
        self.told.put_nowait(("hello", uid, hello))

    def on_term(self, uid, signum):
        self.told.put_nowait(("term", uid, signum))

    def on_exit(self, uid, code):
        self.told.put_nowait(("exit", uid, code))

    def on_lost(self, uid):
        self.told.put_nowait(("lost", uid))

    def on_status(self, uid):
        return "parked", "another seat is active"

    def on_probe(self, uid):
        return "alive"

    def on_turn(self, uid, *, wanted):
        self.told.put_nowait(("turn", uid, wanted))

    def on_progress(self, uid, sentence):
        self.told.put_nowait(("progress", uid, sentence))


class Caller:
    def __init__(self, reader, writer) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *fields: str) -> None:
        self.writer.write(encode(*fields))

    async def receive(self) -> list[str]:
        async with asyncio.timeout(LIMIT):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            return (await self.reader.readexactly(length)).decode().split("\0")

    async def ended(self) -> bool:
        async with asyncio.timeout(LIMIT):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True

    async def ended_without_answer(self) -> bool:
        async with asyncio.timeout(LIMIT):
            try:
                return await self.reader.read(4) == b""
            except ConnectionResetError:
                return True

    def close(self) -> None:
        self.writer.close()


class World:
    def __init__(self, folder) -> None:
        self.peers = Peers()
        self.inits = EveryInit()
        self.listener = Listener()
        self.now = 1000.0
        self.doors = SeatSockets(folder, self.peers, self.inits, lambda: self.now)
        self.doors.listen(self.listener)
        self.callers: list[Caller] = []

    async def call(self, *first: str, uid: str = UID) -> Caller:
        path = await self.doors.open(uid) / "seat.sock"
        self.callers.append(Caller(*await asyncio.open_unix_connection(str(path))))
        if first:
            self.callers[-1].send(*first)
        return self.callers[-1]

    async def told(self):
        async with asyncio.timeout(LIMIT):
            return await self.listener.told.get()


@pytest.fixture
def run_dir():
    # A Unix socket's path ends at 107 bytes, which pytest's own folders exceed.
    with tempfile.TemporaryDirectory(prefix="kyb-") as folder:
        yield Path(folder)


@pytest.fixture
def play(run_dir):
    """Runs a scene with a world, and closes what it left open."""

    def run(scene):
        async def main():
            world = World(run_dir / "seats")
            try:
                await scene(world)
            finally:
                for caller in world.callers:
                    caller.close()
                await world.doors.close(UID)
                for _ in range(5):  # the loop's own steps to close a connection
                    await asyncio.sleep(0)

        asyncio.run(main())

    return run


HELLO = ("hello", "1", "waiting", "0", "plain")


def test_hello_go_term_ok_exit(play):
    async def scene(world):
        caller = await world.call(*HELLO)
        hello = GateHello(os.getpid(), GatePhase.WAITING, 0, image=False)
        assert await world.told() == ("hello", UID, hello)
        world.doors.go(UID, 3, ["/bin/server", ""])
        assert await caller.receive() == ["go", "3", "/bin/server", ""]
        caller.send("term", "15")
        assert await world.told() == ("term", UID, 15)
        world.doors.ok(UID)
        assert await caller.receive() == ["ok"]
        caller.send("exit", "143")
        assert await world.told() == ("exit", UID, 143)
        caller.close()
        assert await world.told() == ("lost", UID)

    play(scene)


def test_a_connection_that_floods_is_dropped(play):
    async def scene(world):
        caller = await world.call(*HELLO)
        await world.told()
        for _ in range(399):  # the hello was the first of 400
            caller.send("term", "15")
        for _ in range(399):
            assert await world.told() == ("term", UID, 15)
        world.now += 0.5
        for _ in range(51):
            caller.send("term", "15")
        assert await caller.ended()
        told = [await world.told() for _ in range(51)]
        assert told == [("term", UID, 15)] * 50 + [("lost", UID)]
        assert (await (await world.call("status")).receive())[0] == "status"

    play(scene)


def test_connections_that_come_too_often_are_dropped_and_later_ones_served(play):
    async def scene(world):
        async def refused():
            caller = await world.call("status")
            try:
                return await caller.ended_without_answer()
            finally:
                caller.close()

        assert [await refused() for _ in range(230)] == [False] * 200 + [True] * 30
        world.now += 1 / 32
        assert [await refused() for _ in range(4)] == [False] * 3 + [True]

    play(scene)


def test_a_hello_tells_phase_generation_and_mode(play):
    async def scene(world):
        await world.call("hello", "1", "parked", "12", "image")
        hello = GateHello(os.getpid(), GatePhase.PARKED, 12, image=True)
        assert await world.told() == ("hello", UID, hello)

    play(scene)


def test_a_refusal_reaches_the_gate(play):
    async def scene(world):
        caller = await world.call(*HELLO)
        await world.told()
        world.doors.refuse(UID, "no GPU of this product")
        assert await caller.receive() == ["refuse", "no GPU of this product"]

    play(scene)


def test_the_newest_connection_of_the_gate_counts(play):
    async def scene(world):
        old = await world.call(*HELLO)
        await world.told()
        new = await world.call(*HELLO)
        assert (await world.told())[0] == "hello"
        assert await old.ended()
        world.doors.ok(UID)
        assert await new.receive() == ["ok"]
        assert world.listener.told.empty()

    play(scene)


def test_status_and_probe_are_answered_beside_the_gate(play):
    async def scene(world):
        gate = await world.call(*HELLO)
        await world.told()
        world.inits.refused = "it is process 40"
        status = await world.call("status")
        assert await status.receive() == ["status", "parked", "another seat is active"]
        probe = await world.call("probe")
        assert await probe.receive() == ["alive"]
        assert await status.ended()
        assert await probe.ended()
        world.doors.ok(UID)
        assert await gate.receive() == ["ok"]

    play(scene)


@pytest.mark.parametrize(
    ("prepare", "first", "said"),
    [
        (lambda world: setattr(world.peers, "pod", "other"), HELLO, "another pod"),
        (lambda world: setattr(world.peers, "pod", None), ("status",), "another pod"),
        (lambda world: setattr(world.inits, "refused", "no process 1"), HELLO, "process 1"),
        (lambda world: None, ("hello", "2", "waiting", "0", "plain"), "protocol 1"),
        (lambda world: None, ("hello",), "protocol 1"),
    ],
)
def test_who_may_not_speak_is_refused_with_a_sentence(play, caplog, prepare, first, said):
    async def scene(world):
        prepare(world)
        caller = await world.call(*first)
        verb, sentence = await caller.receive()
        assert verb == "refuse"
        assert said in sentence
        assert await caller.ended()
        assert world.listener.told.empty()
        assert said in caplog.text

    play(scene)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", 257),
        struct.pack(">I", 2) + b"\xff\xfe",
        encode(""),
        encode("go", "1"),
        encode("hello", "1", "waiting", "0"),
        encode("hello", "1", "asleep", "0", "plain"),
        encode("hello", "1", "waiting", "-1", "plain"),
        encode("hello", "1", "waiting", "٣", "plain"),
        encode("hello", "1", "waiting", "9" * 30, "plain"),
        encode("hello", "1", "waiting", "0", "odd"),
        encode("status", "x"),
        encode("term", "15"),
        encode(*HELLO) + encode("term"),
        encode(*HELLO) + encode("term", "x"),
        encode(*HELLO) + encode("status"),
    ],
)
def test_what_is_not_the_protocol_closes_the_connection_with_a_log_line(play, caplog, data):
    async def scene(world):
        caller = await world.call()
        caller.writer.write(data)
        assert await caller.ended()
        assert "dropped" in caplog.text
        probe = await world.call("probe")
        assert await probe.receive() == ["alive"]

    play(scene)


def test_callers_do_not_fill_the_agents_log(play, caplog):
    async def scene(world):
        for _ in range(60):
            caller = await world.call("nonsense")
            assert await caller.ended()
        assert caplog.text.count("dropped") == 20
        world.now += 1.0
        caller = await world.call("nonsense")
        assert await caller.ended()
        assert caplog.text.count("dropped") == 21

    play(scene)


def test_a_caller_that_is_gone_by_now_is_dropped(play, caplog):
    async def scene(world):
        world.peers.gone = True
        caller = await world.call(*HELLO)
        assert await caller.ended()
        assert "gone" in caplog.text

    play(scene)


def test_a_seat_takes_only_so_many_callers(play):
    async def scene(world):
        for _ in range(64):
            await world.call()
        assert await (await world.call()).ended()

    play(scene)


def test_a_gate_that_does_not_read_is_dropped(play, caplog):
    async def scene(world):
        await world.call(*HELLO)
        await world.told()
        for _ in range(4):
            world.doors.go(UID, 1, ["x" * (FRAME_LIMIT - 100)])
        assert await world.told() == ("lost", UID)
        assert "does not read" in caplog.text

    play(scene)


FULL = ("hello", "1", "running", "3", "plain", "state,cooperate")


def test_a_gate_that_can_use_it_is_told_the_state_now_and_later(play):
    async def scene(world):
        gate = await world.call(*FULL)
        assert await gate.receive() == ["state", "parked", "another seat is active"]
        world.doors.tell(UID, "waking", "a request came")
        assert await gate.receive() == ["state", "waking", "a request came"]

    play(scene)


def test_a_gate_of_an_older_release_is_told_nothing_it_does_not_know(play):
    async def scene(world):
        gate = await world.call(*HELLO)
        await world.told()
        world.doors.tell(UID, "active", "")
        assert await world.doors.cooperate(UID, CooperationPhase.PARK, 1) == ""
        world.doors.ok(UID)
        assert await gate.receive() == ["ok"]

    play(scene)


async def cooperating(world, mode="vllm"):
    gate = await world.call(*FULL)
    await gate.receive()
    gate.send("cooperates", mode)
    gate.send("progress", "here")
    while (await world.told())[0] != "progress":
        continue
    return gate


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (("cooperated", "park", "done", "it sleeps"), ""),
        (("cooperated", "park", "failed", "HTTP 500"), "HTTP 500"),
        (("cooperated", "park", "failed", ""), "it failed"),
        (("cooperated", "park", "failed", "a\nline"), "a?line"),
        (("cooperates", "none"), "the sidecar has gone"),
    ],
)
def test_cooperation_is_asked_and_its_answer_waited_for(play, answer, said):
    async def scene(world):
        gate = await cooperating(world)
        asked = asyncio.create_task(world.doors.cooperate(UID, CooperationPhase.PARK, LIMIT))
        assert await gate.receive() == ["cooperate", "park", "60000"]
        gate.send("cooperated", "wake", "done", "an answer to nothing")
        gate.send(*answer)
        assert await asked == said

    play(scene)


def test_no_answer_and_a_gate_that_goes_hold_nobody_up(play):
    async def scene(world):
        gate = await cooperating(world)
        said = await world.doors.cooperate(UID, CooperationPhase.WAKE, 0.05)
        assert said == "no answer within 0.05 s"
        asked = asyncio.create_task(world.doors.cooperate(UID, CooperationPhase.WAKE, LIMIT))
        assert (await gate.receive())[0] == "cooperate"
        gate.close()
        assert await asked == "kyb-init hung up"

    play(scene)


def test_a_later_question_ends_the_earlier(play):
    async def scene(world):
        gate = await cooperating(world)
        first = asyncio.create_task(world.doors.cooperate(UID, CooperationPhase.PARK, LIMIT))
        await gate.receive()
        second = asyncio.create_task(world.doors.cooperate(UID, CooperationPhase.WAKE, LIMIT))
        await gate.receive()
        assert await first == "asked for something else meanwhile"
        gate.send("cooperated", "wake", "done", "")
        assert await second == ""

    play(scene)


def test_progress_is_passed_on_a_few_times_a_second(play):
    async def scene(world):
        gate = await cooperating(world)
        for number in range(100):
            gate.send("progress", str(number))
        gate.send("exit", "0")
        assert await world.told() == ("exit", UID, 0)
        world.now += 0.2
        gate.send("progress", "\x1b[2Jfurther")
        assert await world.told() == ("progress", UID, "?[2Jfurther")

    play(scene)


def test_sending_to_nobody_does_nothing(play):
    async def scene(world):
        world.doors.ok(UID)
        await world.doors.open(UID)
        world.doors.go(UID, 1, [])

    play(scene)


def test_any_user_may_connect_and_the_folder_goes_with_the_seat(play):
    async def scene(world):
        folder = await world.doors.open(UID)
        assert await world.doors.open(UID) == folder
        assert stat.S_IMODE((folder / "seat.sock").stat().st_mode) == 0o666
        caller = await world.call(*HELLO)
        await world.told()
        await world.doors.close(UID)
        assert await caller.ended()
        assert not folder.exists()
        await world.doors.close(UID)

    play(scene)


def test_a_socket_that_an_earlier_agent_left_is_replaced(play, run_dir):
    async def scene(world):
        folder = run_dir / "seats" / UID
        folder.mkdir(parents=True)
        (folder / "seat.sock").touch()
        caller = await world.call("probe")
        assert await caller.receive() == ["alive"]

    play(scene)


@pytest.mark.real_time
async def test_a_path_that_no_socket_may_have_is_a_wrong_setting(tmp_path):
    world = World(tmp_path / ("x" * 100))
    with pytest.raises(ConfigError, match=r"run_dir: .*107 bytes"):
        await world.doors.open(UID)


@pytest.mark.parametrize("uid", ["", "..", "a/b", "A", "x" * 64])
def test_a_uid_that_is_a_path_is_refused(play, uid):
    async def scene(world):
        with pytest.raises(RefusedError, match="no pod UID"):
            await world.doors.open(uid)

    play(scene)


@given(st.lists(st.lists(field, min_size=1), max_size=8), st.data())
def test_frames_survive_any_cutting(frames, data):
    stream = b"".join(encode(*fields) for fields in frames)
    reader, found = FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found == [tuple(fields) for fields in frames]


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_any_bytes_give_frames_or_a_protocol_error(pieces):
    reader = FrameReader(1024)
    try:
        for piece in pieces:
            for fields in reader.feed(piece):
                assert fields
                assert all(isinstance(text, str) for text in fields)
    except ProtocolError:
        pass


@pytest.mark.parametrize("fields", [("a\0b",), ("x" * (FRAME_LIMIT + 1),)])
def test_what_no_peer_could_read_is_not_encoded(fields):
    with pytest.raises(RefusedError):
        encode(*fields)


frame = st.one_of(
    st.binary(max_size=40),
    st.lists(
        st.one_of(
            st.sampled_from(
                ["hello", "term", "exit", "status", "probe", "1", "waiting", "0", "plain"]
            ),
            field,
        ),
        min_size=1,
        max_size=6,
    ).map(lambda fields: encode(*fields)),
)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(frame, max_size=6))
def test_no_caller_ever_breaks_the_door(play, frames):
    async def scene(world):
        stranger = await world.call()
        stranger.writer.write(b"".join(frames))
        await world.call(*HELLO)
        while (await world.told())[0] != "hello":
            pass
        probe = await world.call("probe")
        assert await probe.receive() == ["alive"]

    play(scene)


def test_a_storm_of_connections_is_taken_a_few_at_a_time(play):
    """All other seats are served by the same event loop."""

    async def scene(world):
        path = await world.doors.open(UID) / "seat.sock"
        door = world.doors._doors[UID]
        ones = [socket.socket(socket.AF_UNIX) for _ in range(40)]
        for one in ones:
            one.setblocking(False)
            one.connect(str(path))
        taken, before = [], 0
        while before < len(ones):
            await asyncio.sleep(0)
            taken.append(len(door.callers) - before)
            before = len(door.callers)
        for one in ones:
            one.close()
        assert max(taken) <= 5

    play(scene)


def test_hints_are_offered_to_a_kyb_init_that_knows_that_word(play):
    async def scene(world):
        gate = await world.call("hello", "1", "running", "1", "plain", "state,turn")
        assert (await gate.receive())[0] == "state"
        assert await gate.receive() == ["turn"]
        older = await world.call("hello", "1", "running", "1", "plain", "state")
        await older.receive()
        world.doors.tell(UID, "active", "")
        assert await older.receive() == ["state", "active", ""]

    play(scene)


def test_of_many_hints_the_last_counts(play):
    async def scene(world):
        gate = await cooperating(world)
        for _ in range(30):
            gate.send("turn", "acquire")
            gate.send("turn", "yield")
        gate.send("turn", "yield")
        await asyncio.sleep(0.5)
        hints = []
        while not world.listener.told.empty():
            hints.append(await world.told())
        assert hints[0] == ("turn", UID, True)
        assert hints[-1] == ("turn", UID, False)
        assert len(hints) <= 4
        # The last word counts also if nothing follows it.
        for hint in ("acquire", "yield", "acquire"):
            gate.send("turn", hint)
        gate.close()
        assert await world.told() == ("turn", UID, True)
        told = [await world.told(), await world.told()]
        assert told == [("turn", UID, True), ("lost", UID)]

    play(scene)


def test_hints_of_turns_are_passed_on_and_others_end_the_connection(play):
    async def scene(world):
        gate = await cooperating(world)
        gate.send("turn", "acquire")
        assert await world.told() == ("turn", UID, True)
        gate.send("turn", "yield")
        assert await world.told() == ("turn", UID, False)
        gate.send("turn", "for ever")
        assert await world.told() == ("lost", UID)

    play(scene)
