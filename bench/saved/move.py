"""A running tree moved to another node: how long nobody answers, against one step after another.

Two processes with the agent's own parts: one dumps and sends, the other receives, verifies, keeps
and restores; between them gRPC with mutual TLS over loopback. The tree is a toy model with random
memory that answers on a port, or Redis, in a container of real containerd and runc. The pause is
from the freeze to the first answer at the other container. In turn

- apart: dump and end, then transfer, then restore, nothing sealed or kept (the baseline);
- cold: sent while it is dumped, sealed here, verified and kept there, ended, restored;
- staged: the same, when a state of before is at the other node, and some of the memory has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click

from bench import hostmemory
from bench.report import emit, median, say
from bench.saved.packing import FACTS
from kybernate.adapters import pki
from kybernate.adapters.keys.artifactkeys import read_folder
from kybernate.checkpoint.delivery.outbox import Outbox
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.raw.stream import Seen
from kybernate.checkpoint.vault import Vault
from kybernate.ports import Handover
from kybernate.runtime.identity import Identity
from kybernate.types import NodeName, PodRef, PodUid, Tier
from nodeagent.api.peers import GrpcPeers
from nodeagent.migration.protocol import Pacer
from tests.cluster.layout import REPOSITORY
from tests.kit.node.containers import Node, Wish
from tests.kit.node.parking import Seat
from tests.kit.node.programs import ask as redis_ask
from tests.kit.node.programs import digest, python, redis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


LIMIT = 120.0
PORT = 8000
KEY_SIZE = 1000
TOY = """
import os, random, socket, sys, zlib
PAGE, chunk = 4096, 1 << 20
memory = bytearray({mib} << 20)
for at in range(0, len(memory), chunk):
    memory[at:at + chunk] = os.urandom(chunk)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", {port}))
server.listen()
print("ready")
while True:
    one, _ = server.accept()
    said = one.recv(100).split()
    if said[0] == b"touch":
        rng = random.Random(int(said[2]))
        for page in rng.sample(range(len(memory) // PAGE), int(said[1])):
            memory[page * PAGE:page * PAGE + 32] = rng.randbytes(32)
    one.sendall(b"%d" % (zlib.crc32(memory) if said[0] == b"sum" else 1))
    one.close()
"""


class Toy:
    """A toy model: random memory behind a port."""

    def __init__(self, folder: Path, mib: int) -> None:
        self._folder, self._mib = folder, mib
        folder.mkdir()
        self.mounts = {folder: "/app"}

    def start(self, start: Callable[..., Seat]) -> Seat:
        """In a container of its own."""
        return python(start, self._folder, TOY.format(mib=self._mib, port=PORT))

    def digest(self, seat: Seat) -> bytes:
        """Of all its memory."""
        return self._ask(seat, "sum")

    def change(self, seat: Seat, percent: float) -> None:
        """So many of its pages, all over."""
        pages = int((self._mib << 8) * percent / 100)
        self._ask(seat, "touch", pages, secrets.randbits(30))

    def answers(self, seat: Seat) -> bool:
        """Whether a new connection is answered."""
        try:
            return bool(self._ask(seat, "ping", limit=0.5))
        except OSError:
            return False

    def _ask(self, seat: Seat, *words: object, limit: float = 60.0) -> bytes:
        return seat.container.ask(PORT, " ".join(map(str, words)).encode(), limit)


class Redis:
    """Redis, with keys of `KEY_SIZE` bytes."""

    mounts: Mapping[Path, str] = {}

    def __init__(self, mib: int) -> None:
        self._keys = (mib << 20) // (KEY_SIZE + 74)

    def start(self, start: Callable[..., Seat]) -> Seat:
        """In a container of its own."""
        return redis(start, keys=self._keys, size=KEY_SIZE)

    def digest(self, seat: Seat) -> bytes:
        """Of all keys."""
        return digest(seat)

    def change(self, seat: Seat, percent: float) -> None:
        """So many of its keys."""
        for _ in range(int(self._keys * percent / 100)):
            number = secrets.randbelow(self._keys)
            redis_ask(seat, "SET", f"key:{number}", secrets.token_hex(KEY_SIZE // 2))

    def answers(self, seat: Seat) -> bool:
        """Whether a new connection is answered."""
        return b"PONG" in redis_ask(seat, "PING", limit=0.5)


class Other:
    """The process of the other node."""

    def __init__(self, node: Node) -> None:
        config = {
            "work": str(node.work / "other"),
            "enter": str(node.tools.enter),
            "criu": str(node.tools.criu),
            "tls": str(node.work / "pki"),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.saved.movetarget", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self.address = f"127.0.0.1:{self._answer()['port']}"

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return cast("dict[str, Any]", json.loads(self._process.stdout.readline()))

    def tell(self, **said: object) -> dict[str, Any]:
        """A command, and its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Its end."""
        self._process.terminate()
        self._process.wait(10)


class Moves:
    """One tree that goes from container to container."""

    def __init__(self, node: Node, workload: Toy | Redis) -> None:
        self._node, self._workload = node, workload
        self._seats: list[Seat] = []
        pki.Folder(node.work / "pki").init(["n1", "n2"], pki.Validity(), datetime.now(UTC))
        words = ("artifacts", "keys", "--dir", str(node.work / "keys"))
        subprocess.run([sys.executable, "-m", "kybernate.cli", *words], check=True, cwd=REPOSITORY)
        for folder in ("here", "other/place"):
            (node.work / folder).mkdir(parents=True)
        self._other = Other(node)
        keys, here, seen = (
            read_folder(node.work / "keys"),
            open_place(str(node.work / "here")),
            Seen(),
        )
        self._vault = Vault({Tier.NVME: here}, Tier.NVME, keys, seen=seen)
        outbox = Outbox(here, keys, seen)
        self._peers = GrpcPeers(Identity("n1", node.work / "pki"), outbox, self._api, Pacer(0.0))
        self._runner = asyncio.Runner()
        self._seat = workload.start(self._start)
        self._number = self._seat.container.number_inside(self._seat.container.tree)

    async def _api(self) -> Any:
        """As much of the API server as tells where the other agent is."""

        class Api:
            def get(self, path: str, timeout: float) -> Any:
                return {"status": {"agent": {"address": address}}}

        address = self._other.address
        return Api()

    def _start(self, *command: str, **wish: object) -> Seat:
        container = self._node.start(Wish(command=command, **wish))  # type: ignore[arg-type]
        self._seats.append(Seat(self._node, container))
        return self._seats[-1]

    def close(self) -> None:
        """End all."""
        self._peers.close()
        self._other.close()
        self._vault.close()
        self._runner.close()
        for seat in self._seats:
            seat.close()

    def run(self, way: str, changed: float) -> dict[str, float]:
        """One move: seconds by phase. `changed`: percent that change after a state was staged."""
        load = self._workload
        successor = self._start(mounts=load.mounts, init=("--parked", str(self._number)))
        uid = PodUid(f"u{len(self._seats)}")
        self._other.tell(
            do="expect", uid=uid, init=successor.container.init, handle=successor.handle
        )
        to = Handover(
            PodRef("bench", "model", PodUid("0")), PodRef("bench", "to", uid), NodeName("n2")
        )
        source = self._seat
        times: dict[str, float] = {}
        if way == "staged":
            times = self._runner.run(self._stage(to))
        load.change(source, changed)
        before = load.digest(source)
        moving = self._apart(to, successor) if way == "apart" else self._together(to, successor)
        times |= self._runner.run(moving)
        times["equal"] = float(load.digest(successor) == before)
        self._seat = successor
        self._node.discard(source.container)
        for folder in ("here/artifacts", "here/.begun", "other/place"):
            shutil.rmtree(self._node.work / folder, ignore_errors=True)
        (self._node.work / "other/place").mkdir()
        return times

    async def _apart(self, to: Handover, successor: Seat) -> dict[str, float]:
        seat, init = self._seat, self._seat.container.init
        times, dumped = {}, asyncio.Event()
        dumped.set()
        images = await self._vault.begin(PodUid("0"))
        began = time.monotonic()
        await seat.freezer.freeze(seat.handle, LIMIT)
        await seat.criu.dump(init, seat.handle, images, LIMIT)
        await seat.criu.end(init, seat.handle, LIMIT)
        times["dump"], began = time.monotonic() - began, time.monotonic()
        await self._peers.follow(to, images, dumped, LIMIT)
        times["transfer"], began = time.monotonic() - began, time.monotonic()
        await asyncio.to_thread(self._other.tell, do="restore", uid=to.successor.uid)
        await self._answered(successor)
        times["restore"] = time.monotonic() - began
        return times

    async def _stage(self, to: Handover) -> dict[str, float]:
        """A state of before, taken while the tree goes on."""
        seat, init = self._seat, self._seat.container.init
        images = await self._vault.begin(PodUid("0"))
        began = time.monotonic()
        await seat.freezer.freeze(seat.handle, LIMIT)
        await seat.criu.dump(init, seat.handle, images, LIMIT)
        await seat.criu.keep(init, seat.handle, LIMIT)
        seat.freezer.thaw(seat.handle)
        times = {"saved": time.monotonic() - began}
        artifact = await self._vault.seal(images, FACTS, LIMIT)
        began = time.monotonic()
        await self._peers.stage(to, artifact, LIMIT)
        return {**times, "staged": time.monotonic() - began}

    async def _together(self, to: Handover, successor: Seat) -> dict[str, float]:
        seat, init = self._seat, self._seat.container.init
        images = await self._vault.begin(PodUid("0"))
        dumped, began, times = asyncio.Event(), time.monotonic(), {}
        sending = asyncio.create_task(self._peers.follow(to, images, dumped, LIMIT))
        await seat.freezer.freeze(seat.handle, LIMIT)
        await seat.criu.dump(init, seat.handle, images, LIMIT)
        times["dump"] = time.monotonic() - began
        dumped.set()
        sent = await sending
        times["sent"] = time.monotonic() - began
        artifact = await self._vault.seal(images, FACTS, LIMIT)
        times["sealed"] = time.monotonic() - began
        await self._peers.deliver(to, artifact, LIMIT)
        times["delivered"] = time.monotonic() - began
        await seat.criu.end(init, seat.handle, LIMIT)
        times["ended"] = time.monotonic() - began
        going = asyncio.create_task(self._peers.let_continue(to, artifact, LIMIT))
        await self._answered(successor)
        times["pause"] = time.monotonic() - began
        await going
        return {**times, "mib": sent / (1 << 20)}

    async def _answered(self, successor: Seat) -> None:
        """Until the tree answers in its new container."""

        def poll() -> None:
            while not self._workload.answers(successor):
                time.sleep(0.002)

        await asyncio.to_thread(poll)


@click.command()
@click.option("--workload", type=click.Choice(["toy", "redis"]), default="toy")
@click.option("--mib", default=1024, show_default=True, help="Memory of the workload.")
@click.option("--samples", default=3, show_default=True, help="Moves of each way.")
@click.option(
    "--changed", default=1.0, show_default=True, help="Of pages or keys, since staged (%)."
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(workload: str, mib: int, samples: int, changed: float, as_json: bool) -> None:
    """Measure moves of a running tree."""
    node = Node("kym", say, subnet="10.96")
    rounds: dict[str, list[dict[str, float]]] = {"apart": [], "cold": [], "staged": []}
    with contextlib.ExitStack() as stack:
        stack.callback(node.close)
        stack.enter_context(hostmemory.kept(mib))
        moves = Moves(node, Toy(node.work / "app", mib) if workload == "toy" else Redis(mib))
        stack.callback(moves.close)
        for number in range(samples + 1):
            for way, times in rounds.items():
                took = moves.run(way, changed)
                say(f"{number} {way}: " + ", ".join(f"{k} {v:.2f}" for k, v in took.items()))
                if number:  # the first of each fills caches of the kernel's and ours
                    times.append(took)
    report("move" if workload == "toy" else f"move-{workload}", rounds, changed, as_json=as_json)


def report(
    bench: str, rounds: dict[str, list[dict[str, float]]], changed: float, *, as_json: bool
) -> None:
    """The figures."""

    def of(way: str, phase: str) -> float:
        return median([times[phase] for times in rounds[way]])

    apart = sum(of("apart", phase) for phase in ("dump", "transfer", "restore"))
    equal = min(times["equal"] for way in rounds.values() for times in way)
    metrics = {
        "pause_ratio": (of("staged", "pause") / apart, "x"),
        "pause_ratio_cold": (of("cold", "pause") / apart, "x"),
        "pause_p50_s": (of("staged", "pause"), "s"),
        "pause_cold_p50_s": (of("cold", "pause"), "s"),
        "sent_staged_mib": (of("staged", "mib"), "MiB"),
        "sent_cold_mib": (of("cold", "mib"), "MiB"),
        "stage_p50_s": (of("staged", "staged"), "s"),
        "save_pause_p50_s": (of("staged", "saved"), "s"),
        "keys_equal": (equal, "yes"),
    }
    baseline = {
        "name": f"dump, transfer and restore one after another; {changed:g} % changed since staged",
        **{f"{p}_p50_s": round(of("apart", p), 4) for p in ("dump", "transfer", "restore")},
        "limit": 0.8,
    }
    emit(bench, metrics, baseline, as_json=as_json)
    if not equal:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
