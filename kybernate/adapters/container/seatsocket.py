"""Each seat's socket, where kyb-init asks for its turn. The protocol's page is
docs/reference/node/kyb-init.md.

The socket a caller came through says which seat it speaks for; the kernel says who the caller is
(SO_PEERCRED), and its cgroup whether it belongs to the seat's pod. Everything it sends is
untrusted: what isn't the protocol closes the connection with a log line, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import shutil
import socket
import struct
import time
from typing import TYPE_CHECKING, Protocol

from kybernate import keys
from kybernate.core.rate import Bucket
from kybernate.errors import ConfigError, NotFoundError, RefusedError
from kybernate.ports import CooperationPhase, GateHello, GatePhase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kybernate.ports import Inits, SeatListener
    from kybernate.types import PodUid

log = logging.getLogger(__name__)

PROTOCOL = "1"
FRAME_LIMIT = 1 << 20
"""Bytes of payload in a frame."""

_HEADER = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")
_CALLER_LIMIT = 256
"""Bytes of payload in a frame of kyb-init's: none of its verbs needs more."""
_HELLO_LIMIT = 5.0
"""Seconds within which a new connection must have said who it is."""
_PROGRESS_EVERY = 0.2
"""Seconds; what a workload reports more often than this is not passed on."""
_HINTS_EVERY = 0.2
"""Seconds; of hints that come more often than this, the last one is passed on at their end."""
_NO_COOPERATION = "none"
_HINTS = ("acquire", "yield")
_ALONE_LIMIT = 2.0
"""Seconds that process 1 has to hang up."""
_MAX_CALLERS = 64
_AT_ONCE = 4
"""New connections of a seat that the event loop takes before it does something else."""
_FRAMES = (100.0, 400)
_CONNECTIONS = (100.0, 200)
"""Frames of a connection and new connections of a seat: so many a second, and at once."""
_COMPLAINTS = (1.0, 20)
"""Log lines about those who call at a seat: so many a second, and at once."""
_SO_PEERPIDFD = 77
_MAX_BACKLOG = 2 << 20
_MAX_PATH = 107
_UID = re.compile(r"[0-9a-z][0-9a-z-]{0,62}")


class ProtocolError(Exception):
    """The peer sent something that isn't the protocol. Stays inside this module."""


def encode(*fields: str) -> bytes:
    """One frame of these fields. Raises RefusedError if it isn't one that a peer could read."""
    payload = "\0".join(fields).encode()
    if len(payload) > FRAME_LIMIT or any("\0" in field for field in fields):
        raise RefusedError("A frame holds at most 1 MiB, and its fields no NUL.")
    return _HEADER.pack(len(payload)) + payload


class FrameReader:
    """Cuts a byte stream into frames; bytes may come in any pieces."""

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[tuple[str, ...]]:
        """The frames that are whole now. Raises ProtocolError; the stream is lost then."""
        self._bytes += data
        frames = []
        while len(self._bytes) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._bytes)
            if length > self._limit:
                raise ProtocolError(f"a frame of {length} bytes, above {self._limit}")
            end = _HEADER.size + length
            if len(self._bytes) < end:
                break
            try:
                frames.append(tuple(self._bytes[_HEADER.size : end].decode().split("\0")))
            except UnicodeDecodeError as error:
                raise ProtocolError("a frame that is not UTF-8") from error
            del self._bytes[:end]
        return frames


class Peers(Protocol):
    """What must be known of a caller; `kybernate.adapters.kernel.procfs` knows it."""

    def pod_uid_of(self, pid: int) -> PodUid | None:
        """The pod the process belongs to. Raises NotFoundError if it is gone."""


class SeatSockets:
    """Implements `kybernate.ports.SeatDoors` with one listening Unix socket per seat.

    All methods are for one event loop. `folder` holds one folder per seat, which is what the
    container gets mounted. `now` is the steady clock (s) that limits of rate are kept by.
    """

    def __init__(
        self,
        folder: Path,
        peers: Peers,
        inits: Inits,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._peers, self._inits = peers, inits
        self._now = now
        self._listener: SeatListener | None = None
        self._doors: dict[PodUid, _Door] = {}

    def listen(self, listener: SeatListener) -> None:
        """Who is told; once, before the first `open`."""
        self._listener = listener

    async def open(self, uid: PodUid) -> Path:
        """Make the seat's folder and socket and serve it; returns the folder. Idempotent.

        Raises ConfigError if the socket's path is longer than Unix sockets may have.
        """
        folder = self._path(uid)
        if uid in self._doors:
            return folder
        if self._listener is None:
            raise RuntimeError("listen() comes before open()")
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        door = self._doors[uid] = _Door(uid, self._listener, self._peers, self._inits, self._now)
        try:
            await door.serve(folder / keys.SEAT_SOCKET_NAME)
        except BaseException:
            self._doors.pop(uid, None)
            raise
        return folder

    async def shut(self, uid: PodUid) -> None:
        """Hang up, without a word to the listener, and let nobody in until `open`. Idempotent."""
        door = self._doors.pop(uid, None)
        if door is not None:
            (self._path(uid) / keys.SEAT_SOCKET_NAME).unlink(missing_ok=True)
            await door.shut()

    async def close(self, uid: PodUid) -> None:
        """Close the seat's connections and socket, and remove its folder. Idempotent."""
        door = self._doors.pop(uid, None)
        if door is not None:
            door.close()
        await asyncio.to_thread(shutil.rmtree, self._path(uid), ignore_errors=True)

    def go(self, uid: PodUid, generation: int, argv_prefix: Sequence[str]) -> None:
        """Its turn: kyb-init starts the command, behind these words if there are any."""
        self._send(uid, "go", str(generation), *argv_prefix)

    def refuse(self, uid: PodUid, sentence: str) -> None:
        """It will never get a turn: kyb-init prints the sentence and exits 1."""
        self._send(uid, "refuse", sentence)

    def expect(self, uid: PodUid, root: int) -> None:
        """Nothing is started there: a tree from elsewhere is brought, whose root is this number.

        Raises RefusedError if this kyb-init is of a release that can't.
        """
        door = self._doors.get(uid)
        if door is not None and door.gate is not None:
            door.gate.expect(root)

    def ok(self, uid: PodUid) -> None:
        """Answer to `term`: kyb-init may pass the signal on."""
        self._send(uid, "ok")

    def tell(self, uid: PodUid, state: str, sentence: str) -> None:
        """What the seat is doing, for those who probe it."""
        door = self._doors.get(uid)
        if door is not None and door.gate is not None:
            door.gate.tell(state, sentence)

    async def cooperate(self, uid: PodUid, phase: CooperationPhase, limit: float) -> str:
        """Have the workload get ready for a park, or continue after a wake; why it didn't, or
        ""."""
        door = self._doors.get(uid)
        if door is None or door.gate is None:
            return ""
        return await door.gate.cooperate(phase, limit)

    def _send(self, uid: PodUid, *fields: str) -> None:
        door = self._doors.get(uid)
        if door is not None and door.gate is not None:
            door.gate.send(*fields)

    def _path(self, uid: PodUid) -> Path:
        if not _UID.fullmatch(uid):
            raise RefusedError(f"{uid!r} is no pod UID: it would name a path.")
        return self._folder / uid


class _Door:
    """One seat's socket and who is connected to it."""

    def __init__(
        self,
        uid: PodUid,
        listener: SeatListener,
        peers: Peers,
        inits: Inits,
        now: Callable[[], float],
    ) -> None:
        self.uid = uid
        self.listener = listener
        self.peers, self.inits = peers, inits
        self.init = 0
        self.now = now
        self.callers: set[_Caller] = set()
        self.gate: _Caller | None = None
        self.closed = False
        self._server: asyncio.Server | None = None
        self.comers = Bucket(*_CONNECTIONS)
        self.complaints = Bucket(*_COMPLAINTS)

    async def serve(self, path: Path) -> None:
        """Bind the socket, whatever an earlier agent left there, and let any user connect."""
        loop = asyncio.get_running_loop()
        server = _bind(path)
        self._server = await loop.create_unix_server(
            lambda: _Caller(self), sock=server, backlog=_AT_ONCE
        )
        server.listen(_MAX_CALLERS)  # the loop has made it as short as what it takes at once

    def close(self) -> None:
        """Stop serving; connections are closed without a further word to the listener."""
        if self._server is not None:
            self._server.close()
        self.closed = True
        self.gate = None
        for caller in tuple(self.callers):
            caller.hang_up()

    async def shut(self) -> None:
        """Let nobody in, have PID 1 hang up on all that are in its pod too, then close."""
        gate = self.gate
        if self._server is not None:
            self._server.close()
        self.closed, self.gate = True, None
        if gate is not None:
            await gate.leave_alone(_ALONE_LIMIT)
        self.close()

    def admit(self, pid: int, peer: socket.socket) -> None:
        """Take this one for process 1, and nobody else until it has ended.

        Raises RefusedError, saying why not, NotFoundError, ProtocolError while another is there.
        """
        taken = self.inits.there(self.init)
        if taken and pid == self.init:
            return
        pidfd = _peer_pidfd(peer, pid)
        try:
            self.inits.admit(pidfd)
        finally:
            os.close(pidfd)
        if taken:
            raise ProtocolError(f"process {self.init} is this seat's process 1, and lives")
        self.init = pid

    def settle(self, caller: _Caller, hello: GateHello) -> None:
        """The newest connection of PID 1 is the one that counts."""
        previous, self.gate = self.gate, caller
        if previous is not None:
            previous.hang_up()
        self.listener.on_hello(self.uid, hello)
        caller.tell(*self.listener.on_status(self.uid))
        caller.hear_hints()

    def leave(self, caller: _Caller) -> None:
        """A connection has ended."""
        self.callers.discard(caller)
        if self.gate is caller:
            self.gate = None
            self.listener.on_lost(self.uid)


class _Caller(asyncio.Protocol):
    """One connection: PID 1 of the container, or a short question from inside it."""

    def __init__(self, door: _Door) -> None:
        self._door = door
        self._reader = FrameReader(_CALLER_LIMIT)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pid = 0
        self._features: frozenset[str] = frozenset()
        self._mode = _NO_COOPERATION
        self._asked: tuple[CooperationPhase, asyncio.Future[str]] | None = None
        self._progress_at = 0.0
        self._hint = ""
        self._hint_timer: asyncio.TimerHandle | None = None
        self._frames = Bucket(*_FRAMES)
        self._ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a Unix stream has a Transport")
        self._transport = transport
        self._door.callers.add(self)
        peer: socket.socket = transport.get_extra_info("socket")
        self._pid = _peer_pid(peer)
        self._timer = asyncio.get_running_loop().call_later(_HELLO_LIMIT, self._overdue)
        if self._door.closed:  # accepted just before
            self.hang_up()
        elif len(self._door.callers) > _MAX_CALLERS:
            self._drop("more connections than a seat may have")
        elif self._door.comers.take(self._door.now()):
            self._drop("a seat's connections come too often")

    def data_received(self, data: bytes) -> None:
        try:
            for fields in self._reader.feed(data):
                self._on_frame(fields)
        except (ProtocolError, NotFoundError) as error:
            self._drop(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._end_hints()
        self._ended.set()
        self._settle("kyb-init hung up")
        self._door.leave(self)

    def send(self, *fields: str) -> None:
        """Send a frame. A peer that doesn't read is dropped, so that nothing piles up here."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(encode(*fields))
        if transport.get_write_buffer_size() > _MAX_BACKLOG:
            self._drop("it does not read what it is sent")

    def tell(self, state: str, sentence: str) -> None:
        """Send the seat's state, if this kyb-init knows what to do with it."""
        if "state" in self._features:
            self.send("state", state, sentence)

    def hear_hints(self) -> None:
        """Say that `turn` may be sent: an agent of an older release would drop the connection."""
        if "turn" in self._features:
            self.send("turn")

    def expect(self, root: int) -> None:
        """Have it start nothing. Raises RefusedError if it doesn't know that word."""
        if "parked" not in self._features:
            raise RefusedError(
                "the container's kyb-init is of a release that can't take an artifact; delete "
                "the pod, so that its next one gets this agent's"
            )
        self.send("parked", str(root))

    async def cooperate(self, phase: CooperationPhase, limit: float) -> str:
        """Ask the workload, if it cooperates at all; why it didn't within `limit` s, or ""."""
        if self._mode == _NO_COOPERATION:
            return ""
        self._settle("asked for something else meanwhile")
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked = (phase, answer)
        self.send("cooperate", phase.value, str(int(limit * 1000)))
        try:
            return await asyncio.wait_for(answer, limit)
        except TimeoutError:
            return f"no answer within {limit:g} s"
        finally:
            if self._asked is not None and self._asked[1] is answer:
                self._asked = None

    async def leave_alone(self, limit: float) -> None:
        """Have it be without a connection to anybody, if this kyb-init can, within `limit` s."""
        if "alone" in self._features:
            self.send("alone")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), limit)

    def cooperates(self, mode: str) -> None:
        """A sidecar that can make the workload cooperate has come, or gone (`none`)."""
        self._mode = mode
        if mode == _NO_COOPERATION:
            self._settle("the sidecar has gone")

    def cooperated(self, phase: str, result: str, sentence: str) -> None:
        """The workload's answer; one to an older question counts for nothing."""
        if self._asked is not None and self._asked[0] == phase:
            self._settle("" if result == "done" else _plain(sentence) or "it failed")

    def progress(self, sentence: str) -> None:
        """The workload says how far it is."""
        now = self._door.now()
        if now >= self._progress_at + _PROGRESS_EVERY:
            self._progress_at = now
            self._door.listener.on_progress(self._door.uid, _plain(sentence))

    def turn(self, hint: str) -> None:
        """The workload says that a phase begins that needs its GPUs (`acquire`), or is over."""
        if hint not in _HINTS:
            raise ProtocolError(f"turn {hint[:20]!r}")
        self._hint = hint
        if self._hint_timer is None:
            self._pass_hint_on()

    def _pass_hint_on(self) -> None:
        self._hint_timer = None
        if not self._hint or self._door.gate is not self:
            return
        hint, self._hint = self._hint, ""
        loop = asyncio.get_running_loop()
        self._hint_timer = loop.call_later(_HINTS_EVERY, self._pass_hint_on)
        self._door.listener.on_turn(self._door.uid, wanted=hint == _HINTS[0])

    def _end_hints(self) -> None:
        """Pass on what still waits: it was the last word."""
        if self._hint_timer is None:
            return
        self._hint_timer.cancel()
        self._pass_hint_on()
        if self._hint_timer is not None:  # for what comes after what was passed on just now
            self._hint_timer.cancel()

    def _settle(self, answer: str) -> None:
        if self._asked is not None and not self._asked[1].done():
            self._asked[1].set_result(answer)

    def hang_up(self) -> None:
        """Close the connection once what was sent is out."""
        if self._transport is not None:
            self._transport.close()

    def _on_frame(self, fields: tuple[str, ...]) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._frames.take(self._door.now()):
            raise ProtocolError("frames come too often")
        verb, *arguments = fields
        if self._door.gate is not self:
            self._introduce(verb, arguments)
        elif verb in _FROM_GATE and len(arguments) == 1:
            _FROM_GATE[verb](self._door.listener, self._door.uid, _number(arguments[0]))
        elif verb in _FROM_POD and len(arguments) == _FROM_POD[verb][0]:
            _FROM_POD[verb][1](self, *arguments)
        else:
            raise ProtocolError(f"{verb!r} with {len(arguments)} arguments")

    def _introduce(self, verb: str, arguments: list[str]) -> None:
        door = self._door
        if door.peers.pod_uid_of(self._pid) != door.uid:
            self._refuse("This socket belongs to another pod.")
        elif verb == "hello" and arguments[:1] != [PROTOCOL]:
            self._refuse(f"This node's agent speaks protocol {PROTOCOL} of kyb-init only.")
        elif verb == "hello":
            hello = _hello(self._pid, arguments[:4])
            if not self._is_admitted():
                return
            self._features = frozenset(",".join(arguments[4:]).split(","))
            self._disarm()
            door.settle(self, hello)
        elif verb == "status" and not arguments:
            self.send("status", *door.listener.on_status(door.uid))
            self.hang_up()
        elif verb == "probe" and not arguments:
            self.send(door.listener.on_probe(door.uid))
            self.hang_up()
        else:
            raise ProtocolError(f"{verb!r} with {len(arguments)} arguments before a hello")

    def _is_admitted(self) -> bool:
        transport = self._transport
        if transport is None:
            return False
        try:
            self._door.admit(self._pid, transport.get_extra_info("socket"))
        except RefusedError as error:
            # What it is told doesn't say what was looked at.
            sentence = "Only process 1 of the seat's container may ask for its turn."
            self._refuse(sentence, str(error))
            return False
        return True

    def _refuse(self, sentence: str, why: str = "") -> None:
        self._complain("refused", why or sentence)
        self.send("refuse", sentence)
        self.hang_up()

    def _overdue(self) -> None:
        self._drop("it never said who it is")

    def _drop(self, reason: str) -> None:
        self._complain("dropped", reason)
        if self._transport is not None:
            self._transport.abort()

    def _complain(self, what: str, why: str) -> None:
        door = self._door
        if not door.complaints.take(door.now()):
            log.warning("Seat of pod %s: process %d %s: %s", door.uid, self._pid, what, why)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_FROM_GATE: dict[str, Callable[[SeatListener, PodUid, int], None]] = {
    "term": lambda listener, uid, number: listener.on_term(uid, number),
    "exit": lambda listener, uid, number: listener.on_exit(uid, number),
}
_FROM_POD: dict[str, tuple[int, Callable[..., None]]] = {
    "cooperates": (1, _Caller.cooperates),
    "cooperated": (3, _Caller.cooperated),
    "progress": (1, _Caller.progress),
    "turn": (1, _Caller.turn),
}


def _hello(pid: int, arguments: list[str]) -> GateHello:
    if len(arguments) != 4 or arguments[3] not in ("plain", "image"):
        raise ProtocolError(f"hello with the arguments {arguments}")
    try:
        phase = GatePhase(arguments[1])
    except ValueError as error:
        raise ProtocolError(f"hello in phase {arguments[1]!r}") from error
    return GateHello(
        peer_pid=pid,
        phase=phase,
        generation=_number(arguments[2]),
        image=arguments[3] == "image",
    )


def _plain(text: str) -> str:
    """A workload's words for people: nothing in them moves a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ProtocolError(f"{text!r} where a number belongs")
    return int(text)


def _bind(path: Path) -> socket.socket:
    """A listening socket in place of whatever an earlier agent left there, open to any user."""
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ConfigError("run_dir", f"{path} is above {_MAX_PATH} bytes; choose a shorter folder")
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        server.bind(str(path))
        path.chmod(0o666)
        server.listen(_MAX_CALLERS)
    except OSError:
        server.close()
        raise
    return server


def _peer_pidfd(peer: socket.socket, pid: int) -> int:
    """Of the process that connected, which a PID alone may not name any more. NotFoundError."""
    try:
        return peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise NotFoundError(f"process {pid} has ended") from error
    try:  # a kernel before 6.5
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise NotFoundError(f"process {pid} has ended") from error


def _peer_pid(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid
