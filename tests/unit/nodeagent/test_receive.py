"""A state that comes from another node's agent: by real gRPC and mutual TLS, into a real folder."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from kybernate.adapters.pki import Folder, Validity
from kybernate.checkpoint import seal
from kybernate.checkpoint.deadline import Deadline
from kybernate.checkpoint.inbox import Inbox
from kybernate.checkpoint.incoming import Incoming
from kybernate.checkpoint.outbox import Outbox
from kybernate.checkpoint.places import open_place, read_manifest
from kybernate.checkpoint.room import Room
from kybernate.checkpoint.stream import Seen
from kybernate.checkpoint.vault import Vault
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import layout
from kybernate.core.restores import RestoreWish
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.gen import peers_pb2 as pb
from kybernate.ports import Handover
from kybernate.types import ArtifactId, NodeName, PodRef, PodUid, SeatState, Tier
from nodeagent import peersapi
from nodeagent.arrived import ARRIVED
from nodeagent.doorkeeper import Doorkeeper, Rates
from nodeagent.kept import Keepsake
from nodeagent.parts import Pacer
from nodeagent.peers import GrpcPeers
from nodeagent.peersapi import PeersApi
from nodeagent.receive import Receiver
from nodeagent.seat import Begins
from nodeagent.servers import serve_network
from nodeagent.takenover import TAKEN
from tests.unit.checkpoint.kit import KEYS, draft, make_dump
from tests.unit.nodeagent.test_api import node_api

LIMIT = 20.0
POD = PodRef("team-a", "llama-0", PodUid("5e1f"))


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    Folder(folder).init(["n1", "n2"], Validity(), datetime.now(UTC))
    for kind in ("key", "crt"):
        (folder / f"agent-proxy.{kind}").write_bytes((folder / f"proxy.{kind}").read_bytes())
    return folder


class Adopter:
    """As `Adoptions`, and remembers. `refuses` is raised once, before anything is done."""

    def __init__(self) -> None:
        self.adopted: list[tuple[str, str, Tier]] = []
        self.of: list[PodRef] = []
        self.refuses: Exception | None = None

    def awaits(self, seat, uid):
        wish = seat.restore
        return "" if wish and wish.uid == uid else f"pod {seat.identity.pod} does not wait"

    async def adopt(self, seat, artifact, tier, *, of):
        self.of.append(of)
        if self.refuses:
            error, self.refuses = self.refuses, None
            raise error
        self.adopted.append((seat.uid, artifact, tier))
        seat.artifact = artifact


class Two:
    """Node n1 here, whose agent calls; node n2, with a seat that waits."""

    def __init__(self, rig, tls, tmp_path) -> None:
        self.r, self.tls = rig(tiers={Tier.NVME: 1 << 40}), tls
        self.here, self.there = (open_place(str(tmp_path / name)) for name in ("here", "there"))
        seen = Seen()
        self.outbox, self.seen = Outbox(self.here, KEYS, seen), seen
        self.adopter = Adopter()
        self.restart()
        self.port = 0
        self.address = ""

    def restart(self) -> None:
        """Node n2's agent; its calls are answered from now on if it serves anew."""
        node = self.r.node
        seen = self.seen_there = Seen()
        self.vault = Vault({Tier.NVME: self.there}, Tier.NVME, KEYS, seen=seen)
        node.world = replace(node.world, below=replace(node.world.below, vault=self.vault))
        self.inbox = Inbox(self.there, KEYS, seen)
        self.receiver = Receiver(self.r.loop, self.inbox, self.adopter)
        self.receiver.resume(dict(self.r.machine.journal))

    def has(self, artifact) -> bool:
        return (self.there.local / layout.manifest_key(artifact)).exists()

    async def until_gone(self, artifact) -> None:
        while self.has(artifact) or ARRIVED + artifact in self.r.machine.journal:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def begin(self):
        self.r.loop.adoptions.at_gate = lambda seat: None  # nothing is adopted but by a move
        self.r.begin()
        self.uid = await self.r.seat("b", delay=0.0, restore=RestoreWish(uid=POD.uid))
        seat = self.r.node.seats[self.uid]
        seat.identity = SimpleNamespace(
            **{
                **{name: getattr(seat.identity, name) for name in seat.identity.__slots__},
                "pod": PodRef(POD.namespace, "b", self.uid),
            }
        )
        self.to = Handover(POD, seat.identity.pod, NodeName("n2"))
        keeper = Doorkeeper(Rates(), self.r.clock.time, unix=False)
        self.server, self.port = await serve_network(
            node_api(self.r), keeper, "127.0.0.1:0", self.tls, "n2", PeersApi(self.receiver)
        )
        self.address = f"127.0.0.1:{self.port}"
        while not seat.connected:  # noqa: ASYNC110 - the machine's time is real here
            await asyncio.sleep(0.01)
        return seat

    async def api(self):
        def get(path, timeout):
            if "/pods/" in path:
                if path.endswith("/none"):
                    raise NotFoundError("no such pod")
                node = {"b": "n2", "c": "n1", "d": ""}[path.rpartition("/")[2]]
                return {"metadata": {"uid": "u"}, "spec": {"nodeName": node}}
            return {"status": {"agent": {"address": self.address}}}

        return SimpleNamespace(get=get)

    def peers(self, name="n1", rate=0.0):
        return GrpcPeers(name, self.tls, self.outbox, self.api, Pacer(rate))

    def dump(self, seed=1, blocks=40):
        folder = self.here.local / ".begun" / "x"
        folder.mkdir(parents=True, exist_ok=True)
        return make_dump(folder / f"d{seed}", seed, blocks)

    def sealed(self, images, number=1):
        hashed = self.seen.hashed.pop(images, None)
        return seal.seal(self.here, images, draft(number), KEYS, Deadline(LIMIT), hashed).id

    async def end(self):
        await self.server.stop(0)


@contextlib.asynccontextmanager
async def two_nodes(rig, tls, tmp_path):
    two = Two(rig, tls, tmp_path)
    await two.begin()
    peers = two.peers()
    try:
        yield two, peers
    finally:
        peers.close()
        await two.end()


async def follow(two, peers, images):
    dumped = asyncio.Event()
    dumped.set()
    return await peers.follow(two.to, images, dumped, LIMIT)


def test_a_state_comes_and_the_successor_goes_on(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            await peers.expect(two.to, LIMIT)
            before = two.sealed(two.dump(1))
            assert await peers.stage(two.to, before, LIMIT) > 0
            assert await peers.stage(two.to, before, LIMIT) == 0, "it is there already"
            images = two.dump(1)
            sent = await follow(two, peers, images)
            artifact = two.sealed(images, 2)
            await peers.deliver(two.to, artifact, LIMIT)
            manifest = read_manifest(two.there, artifact, KEYS)
            verify(two.there, manifest, KEYS, Deadline(LIMIT))
            assert sent < manifest.total
            await peers.take_over(two.to, artifact, LIMIT)
            await peers.take_over(two.to, artifact, LIMIT)
            assert two.adopter.adopted == [(two.uid, artifact, Tier.NVME)]
            assert two.adopter.of == [POD]
            assert two.r.machine.journal[TAKEN + artifact] == {"successor": two.uid}
            assert two.inbox.waiting() == frozenset()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["/proc/self/environ", "../pieces", "../../../keys", ""])
def test_the_other_end_is_sent_files_of_the_state_alone(rig, tls, tmp_path, name):
    async def main():
        two = Two(rig, tls, tmp_path)
        artifact = two.sealed(two.dump(1))
        with pytest.raises(RefusedError, match="is no file of"):
            list(two.outbox.whole(artifact, iter([name]), Deadline(LIMIT)))

    asyncio.run(main())


def test_nobody_else_says_that_a_pod_of_this_node_ended(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, _):
            runs = await two.r.seat("a")
            two.r.node.seats[two.uid].restore = RestoreWish(uid=runs)
            pod = PodRef(POD.namespace, "a", runs)
            with pytest.raises(RefusedError, match="is on this node"):
                await two.receiver.take_over(pod, two.uid, two.sealed(two.dump(1)))
            assert two.adopter.adopted == []

    asyncio.run(main())


def test_what_was_never_followed_is_delivered_whole(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1))
            await peers.deliver(two.to, artifact, LIMIT)
            verify(two.there, read_manifest(two.there, artifact, KEYS), KEYS, Deadline(LIMIT))

    asyncio.run(main())


def test_what_is_in_no_local_place_is_adopted_from_the_store(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1))
            await peers.take_over(two.to, artifact, LIMIT)
            assert two.adopter.adopted == [(two.uid, artifact, Tier.OBJECT)]

    asyncio.run(main())


def test_one_that_found_the_state_by_itself_has_taken_it_over(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1))
            await peers.deliver(two.to, artifact, LIMIT)
            seat, lines = two.r.node.seats[two.uid], two.r.loop.registry
            seat.begins, seat.started_once = Begins.ADOPTED, True
            with pytest.raises(RefusedError, match="runs already"):
                await peers.take_over(two.to, artifact, LIMIT)
            await lines.stop(POD.namespace, POD.uid, "a test", LIMIT)
            await lines.claim(POD.namespace, POD.uid, artifact, two.uid, LIMIT)
            await peers.take_over(two.to, artifact, LIMIT)
            assert two.adopter.adopted == []

    asyncio.run(main())


def test_a_full_disk_and_a_pod_that_goes_leave_nothing(rig, tls, tmp_path, monkeypatch):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1))

            def full(*_):
                raise OSError(28, "No space left on device")

            with monkeypatch.context() as patched:
                patched.setattr(Incoming, "take", full)
                with pytest.raises(RetryableError, match="No space left"):
                    await peers.stage(two.to, artifact, LIMIT)
            await peers.stage(two.to, artifact, LIMIT)
            assert two.inbox.waiting() == {two.uid}
            two.receiver.seat_gone(two.r.node.seats[two.uid])
            for _ in range(500):
                if not two.inbox.waiting():
                    break
                await asyncio.sleep(0.01)
            assert two.inbox.waiting() == frozenset()

    asyncio.run(main())


def test_only_agents_may_call(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, _):
            proxy = two.peers("proxy")
            with pytest.raises(RefusedError, match="agents of other nodes"):
                await proxy.expect(two.to, LIMIT)
            with pytest.raises(RefusedError, match="agents of other nodes"):
                await follow(two, proxy, two.dump(1))
            proxy.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"restore": None}, RefusedError, "does not wait"),
        ({"restore": RestoreWish(uid=PodUid("other"))}, RefusedError, "does not wait"),
        ({"started_once": True}, RefusedError, "runs already"),
        ({"state": SeatState.ACTIVE}, RefusedError, "runs already"),
        ({"doomed": True}, RefusedError, "is ending"),
        ({"connected": False}, RetryableError, "isn't ready"),
    ],
)
def test_a_seat_that_does_not_wait_for_it_takes_nothing(rig, tls, tmp_path, change, error, words):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            seat = two.r.node.seats[two.uid]
            for name, value in change.items():
                setattr(seat, name, value)
            artifact = two.sealed(two.dump(1))
            for call in (
                peers.expect(two.to, LIMIT),
                peers.stage(two.to, artifact, LIMIT),
                peers.deliver(two.to, artifact, LIMIT),
                peers.take_over(two.to, artifact, LIMIT),
            ):
                with pytest.raises(error, match=words):
                    await call
            assert two.inbox.waiting() == frozenset()

    asyncio.run(main())


def test_a_successor_is_of_the_same_namespace_and_on_that_node(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            other = Handover(PodRef("team-b", "x", POD.uid), two.to.successor, two.to.node)
            with pytest.raises(RefusedError, match="of another namespace"):
                await peers.expect(other, LIMIT)
            gone = Handover(POD, PodRef("team-a", "x", PodUid("nobody")), two.to.node)
            with pytest.raises(RetryableError, match="no seat of a pod"):
                await peers.expect(gone, LIMIT)
            with pytest.raises(RefusedError, match="uid"):
                await peers.expect(Handover(PodRef("team-a", "x", PodUid("")), *_rest(two)), LIMIT)

    asyncio.run(main())


def _rest(two):
    return two.to.successor, two.to.node


def test_successors_are_found_by_name(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (_, peers):
            assert await peers.find("team-a", "b", LIMIT) == (PodRef("team-a", "b", "u"), "n2")
            with pytest.raises(RefusedError, match="on this node, too"):
                await peers.find("team-a", "c", LIMIT)
            with pytest.raises(RefusedError, match="on no node yet"):
                await peers.find("team-a", "d", LIMIT)
            with pytest.raises(NotFoundError):
                await peers.find("team-a", "none", LIMIT)

    asyncio.run(main())


def test_bytes_that_rot_on_the_way_are_never_kept(rig, tls, tmp_path, monkeypatch):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1))
            real = two.inbox.accept

            def rotten(pod, successor, name, signed):
                for path in (two.inbox._home(successor)).glob("images/pages-*"):
                    path.write_bytes(b"rotten")
                    two.inbox._files[successor].pop(path.name, None)
                return real(pod, successor, name, signed)

            monkeypatch.setattr(two.inbox, "accept", rotten)
            with pytest.raises(CorruptError, match="arrived otherwise"):
                await peers.deliver(two.to, artifact, LIMIT)
            assert not two.inbox.is_here(artifact)
            await peers.call_off(two.to, LIMIT)
            assert two.inbox.waiting() == frozenset()

    asyncio.run(main())


def test_an_agent_that_is_away_is_tried_again_later(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            await two.server.stop(0)
            with pytest.raises((RetryableError, DeadlineError)):
                await peers.expect(two.to, 2.0)
            two.address = ""
            with pytest.raises(RetryableError, match="no address"):
                await peers.expect(two.to, 2.0)

    asyncio.run(main())


def test_a_stream_that_is_cut_short_is_kept_as_far_as_it_came(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1, blocks=400))
            slow = two.peers(rate=20e6)
            cut = asyncio.create_task(slow.stage(two.to, artifact, LIMIT))
            came = 0
            while not came:
                came = sum((await asyncio.to_thread(two.inbox.held, two.uid))[1].values())
            cut.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cut
            slow.close()
            total = sum(f.size for f in read_manifest(two.here, artifact, KEYS).files)
            rest = await peers.stage(two.to, artifact, LIMIT)
            assert 0 < rest < total

    asyncio.run(main())


def test_the_rate_is_a_limit():
    waits = []
    now = [0.0]

    def sleep(seconds):
        waits.append(seconds)
        now[0] += seconds

    pacer = Pacer(1000.0, now=lambda: now[0], sleep=sleep)
    for _ in range(10):
        pacer.wait(1000)
    assert 8.0 < sum(waits) < 10.1
    threading.Thread(target=Pacer(0.0).wait, args=(1 << 40,)).start()


# --- what a power cut left ------------------------------------------------------------------------


def test_a_state_of_which_a_power_cut_left_a_part_is_not_taken_over(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1))
            await peers.deliver(two.to, artifact, LIMIT)
            spoilt = two.there.local / layout.folder(artifact) / "images" / "pages-1.img"
            spoilt.write_bytes(b"")
            two.restart()
            assert not await two.receiver.is_whole(artifact)
            two.adopter.refuses = NotFoundError("not here")
            with pytest.raises(NotFoundError):
                await two.receiver.take_over(POD, two.uid, artifact)
            assert not two.has(artifact)
            signed = two.outbox.signed(artifact)
            assert await two.receiver.deliver(POD, two.uid, artifact, signed)
            assert ARRIVED + artifact not in two.r.machine.journal

    asyncio.run(main())


def test_the_registry_hears_of_what_is_whole_and_of_what_is_not(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, _):
            told = []
            two.r.node.world = replace(two.r.node.world, registry=object())
            two.r.loop.reports.put = lambda report: told.append(
                (report.kind.value, report.why != "")
            )
            artifact = two.sealed(two.dump(1))
            signed = two.outbox.signed(artifact)
            assert await two.receiver.deliver(POD, two.uid, artifact, signed)
            incoming = two.inbox.receiving(two.uid, "")
            names = iter(path.name for path in sorted(two.here.local.rglob("*.img")))
            for part in two.outbox.whole(artifact, names, Deadline(LIMIT)):
                incoming.take(part)
            incoming.close()
            assert not await two.receiver.deliver(POD, two.uid, artifact, signed)
            assert await two.receiver.is_whole(artifact)
            assert told == [("dropped", True), ("copied", False)]

    asyncio.run(main())


# --- what nobody goes on from ---------------------------------------------------------------------


async def delivered(two, peers):
    artifact = two.sealed(two.dump(1))
    await peers.deliver(two.to, artifact, LIMIT)
    assert two.has(artifact)
    assert two.r.machine.journal[ARRIVED + artifact]["successor"] == two.uid
    return artifact


def test_what_was_delivered_for_a_move_that_is_called_off_goes(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            other = PodRef(POD.namespace, "other", PodUid("other"))
            await two.receiver.call_off(other, two.uid)
            await two.receiver.call_off(POD, PodUid("another"))
            assert two.r.machine.journal[ARRIVED + artifact]["off"] is False
            await peers.call_off(two.to, LIMIT)
            await peers.call_off(two.to, LIMIT)
            await two.until_gone(artifact)

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_what_is_half_there_goes_by_the_word_of_its_own_pod_alone(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            staged = two.sealed(two.dump(1))
            await peers.stage(two.to, staged, LIMIT)
            other = PodRef(POD.namespace, "other", PodUid("other"))
            await two.receiver.call_off(other, two.uid)
            assert two.inbox.held(two.uid)[0] == staged
            await peers.call_off(two.to, LIMIT)
            assert two.inbox.held(two.uid) == ("", {})

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_an_agent_that_dies_before_it_dropped_it_leaves_that_to_the_next(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)

            async def dies(artifact, place, *, forget):
                raise asyncio.CancelledError

            two.vault.drop = dies
            await peers.call_off(two.to, LIMIT)
            two.restart()
            await two.until_gone(artifact)

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_drop_that_fails_is_tried_again(rig, tls, tmp_path, monkeypatch):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            monkeypatch.setattr("nodeagent.arrived._AGAIN", 0.01)
            real, fails = two.vault.drop, [OSError("the disk refuses"), RetryableError("later")]

            async def drop(*args, **more):
                if fails:
                    raise fails.pop()
                await real(*args, **more)

            two.vault.drop = drop
            await peers.call_off(two.to, LIMIT)
            await two.until_gone(artifact)
            assert not fails

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.parametrize("then", ["deliver", "take over"])
def test_what_came_before_a_move_was_begun_anew_goes(rig, tls, tmp_path, then):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            newer = two.sealed(two.dump(2), 2)
            if then == "deliver":
                await peers.deliver(two.to, newer, LIMIT)
                assert two.has(newer)
            else:
                await peers.take_over(two.to, newer, LIMIT)
            await two.until_gone(artifact)
            assert two.has(newer) is (then == "deliver")

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.parametrize("found", ["handed over", "by itself", "as a copy"])
def test_what_a_seat_goes_on_from_is_not_dropped_for_a_late_word(rig, tls, tmp_path, found):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            seat, begun = two.r.node.seats[two.uid], []
            two.r.loop.life.aside = lambda what: (begun.append(what.__name__), what.close())
            if found == "handed over":
                await peers.take_over(two.to, artifact, LIMIT)
                seat.artifact = ""
            else:
                seat.artifact, seat.begins = artifact, Begins.ADOPTED
                own = found == "by itself"
                seat.predecessor, seat.claimed = (POD.uid, artifact) if own else ("", "")
                two.receiver.seat_changed(seat)
            assert (ARRIVED + artifact in two.r.machine.journal) is (found == "as a copy")
            await peers.call_off(two.to, LIMIT)
            assert begun == []
            two.receiver.seat_gone(seat)
            assert ("_see_off" in begun) is (found == "as a copy")
            assert "_drop" not in begun
            assert two.has(artifact)

    asyncio.run(main())


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_what_a_pod_that_is_gone_never_took_is_kept_for_a_while(
    rig, tls, tmp_path, monkeypatch, over_a_restart
):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            monkeypatch.setattr("nodeagent.arrived._AGAIN", 0.01)
            two.r.node.settings = two.r.node.settings.model_copy(update={"keep_left_s": 0.01})
            seats, looks = two.r.node.seats, []
            gone = seats.pop(two.uid)
            waits = seats[await two.r.seat("c", delay=0.0, restore=RestoreWish(uid=POD.uid))]
            if over_a_restart:
                two.restart()
            arrived = two.receiver._arrived
            real = arrived._is_wanted
            arrived._is_wanted = lambda one: (looks.append(one), real(one))[1]
            if not over_a_restart:
                two.receiver.seat_gone(gone)
            while len(looks) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert two.has(artifact), "somebody waits for it"
            waits.restore = None
            waits.artifact = artifact
            seen = len(looks)
            while len(looks) < seen + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert two.has(artifact), "somebody has it"
            waits.artifact = ""
            await two.until_gone(artifact)

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_what_people_kept_and_what_came_again_is_not_dropped(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            arrived = two.receiver._arrived
            before = arrived._all[artifact]
            await peers.deliver(two.to, artifact, LIMIT)
            await arrived._drop(before, "a test")
            assert two.has(artifact), "it was delivered again"
            kept = Keepsake(artifact, "save", POD.uid, {Tier.NVME: 1})
            await two.r.loop.dumps.kept.put(kept)
            await arrived._drop(arrived._all[artifact], "a test")
            assert two.has(artifact)
            assert ARRIVED + artifact not in two.r.machine.journal

    asyncio.run(main())


def test_what_is_not_the_pods_own_is_neither_kept_nor_noted(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1))
            two.r.node.seats[two.uid].restore = RestoreWish(uid=PodUid("copy"))
            copy = PodRef(POD.namespace, "copy", PodUid("copy"))
            to = Handover(copy, two.to.successor, two.to.node)
            with pytest.raises(RefusedError, match="is a state of pod team-a/5e1f, not of team-a"):
                await peers.deliver(to, artifact, LIMIT)
            assert not two.has(artifact)
            assert ARRIVED + artifact not in two.r.machine.journal

    asyncio.run(main())


# --- how much may come, and how long it may take --------------------------------------------------


def test_no_more_comes_than_nvme_may_hold(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            first, second = two.sealed(two.dump(1)), two.sealed(two.dump(2), 2)
            total = read_manifest(two.here, first, KEYS).total
            below = two.r.node.world.below
            limits = {Tier.NVME: 2 * total - 1}
            two.r.node.world = replace(two.r.node.world, below=replace(below, limits=limits))
            await peers.stage(two.to, first, LIMIT)
            await peers.deliver(two.to, first, LIMIT)
            with pytest.raises(RefusedError, match="nvme_bytes"):
                await peers.deliver(two.to, second, LIMIT)
            assert not two.has(second)

    asyncio.run(main())


def test_room_is_asked_for_before_anything_is_sent(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = two.sealed(two.dump(1))
            total = read_manifest(two.here, artifact, KEYS).total
            below = two.r.node.world.below
            limits = {Tier.NVME: total}
            two.r.node.world = replace(two.r.node.world, below=replace(below, limits=limits))
            await peers.expect(two.to, LIMIT, size=total)
            words = f"of node n1 has room for {total} bytes, and the state of .* about {total + 1};"
            with pytest.raises(RefusedError, match=words):
                await peers.expect(two.to, LIMIT, size=total + 1)
            # What is sent anew has the room of what came before.
            await follow(two, peers, two.dump(2))
            await peers.expect(two.to, LIMIT, size=total)
            await peers.deliver(two.to, artifact, LIMIT)
            with pytest.raises(RefusedError, match="has room for 0 bytes"):
                await peers.expect(two.to, LIMIT, size=1)
            await peers.expect(two.to, LIMIT)

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_the_disk_counts_beside_the_limit(tmp_path, monkeypatch):
    room, one = Room(tmp_path), PodUid("one")
    disk = SimpleNamespace(f_blocks=100, f_frsize=1 << 30, f_bavail=5)
    monkeypatch.setattr("kybernate.checkpoint.room.os.statvfs", lambda folder: disk)
    assert room.left(one) == 4 << 30, "1 GiB stays free for others"
    room.see(one, "pages-1.img", 1 << 30, staged=False)
    assert (room.left(one), room.left(PodUid("two"))) == (5 << 30, 4 << 30)
    room.limit = 3 << 30
    assert (room.left(one), room.left(PodUid("two"))) == (3 << 30, 2 << 30)


def test_what_came_takes_room_until_it_is_a_seats_or_gone(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):

            def taken():
                return two.receiver.bytes_in(Tier.NVME)

            images = two.dump(1)
            await follow(two, peers, images)
            came = taken()
            assert came > 0
            artifact = two.sealed(images)
            await peers.deliver(two.to, artifact, LIMIT)
            assert taken() == came == read_manifest(two.there, artifact, KEYS).total
            await peers.deliver(two.to, artifact, LIMIT)
            assert (taken(), two.receiver.bytes_in(Tier.OBJECT)) == (came, 0)
            two.restart()
            assert taken() == came
            kept = {Tier.NVME: came}
            await two.r.loop.dumps.kept.put(Keepsake(ArtifactId(artifact), "s1", POD.uid, kept))
            assert taken() == 0, "what people keep is counted as such"
            two.r.loop.dumps.kept.forget(artifact)
            two.r.node.seats[two.uid].artifact = artifact
            assert taken() == 0
            two.r.node.seats[two.uid].artifact = ""
            assert taken() == came
            await two.receiver.call_off(POD, two.uid)
            await two.until_gone(artifact)
            assert taken() == 0

    asyncio.run(asyncio.wait_for(main(), LIMIT))


async def never():
    await asyncio.Event().wait()
    yield pb.Parts()


def test_a_stream_on_which_nothing_comes_is_ended(rig, tls, tmp_path, monkeypatch):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, _):
            settings = two.r.node.settings
            two.r.node.settings = settings.model_copy(update={"dump_deadline_s": 0.01})
            with pytest.raises(DeadlineError, match="no part"):
                await two.receiver.coming.receive(POD, two.uid, "", never())

            async def slowly():
                for number in range(10_000):
                    yield pb.Parts(parts=[pb.Part(whole=pb.Whole(file=f"core-{number}.img"))])
                    await asyncio.sleep(0.01)

            late = {"dump_deadline_s": LIMIT, "transfer_deadline_s": 0.02}
            two.r.node.settings = settings.model_copy(update=late)
            with pytest.raises(DeadlineError, match="not all of it in"):
                await two.receiver.coming.receive(POD, two.uid, "", slowly())
            monkeypatch.setattr(peersapi, "_DEADLINE", 0.01)
            with pytest.raises(DeadlineError, match="opening"):
                await PeersApi(two.receiver).Receive(never(), None)

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_file_is_not_closed_under_the_thread_that_writes_it(rig, tls, tmp_path, monkeypatch):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, _):
            order, began, go_on = [], threading.Event(), threading.Event()
            real = Incoming.close

            def take(self, part):
                began.set()
                go_on.wait(LIMIT)
                order.append("written")

            def close(self):
                order.append("closed")
                real(self)

            monkeypatch.setattr(Incoming, "take", take)
            monkeypatch.setattr(Incoming, "close", close)

            async def two_parts():
                for name in ("a", "b"):
                    yield pb.Parts(parts=[pb.Part(written=pb.Written(file=name, data=b"x"))])

            work = two.receiver.coming.receive(POD, two.uid, "", two_parts())
            receiving = asyncio.create_task(work)
            await asyncio.to_thread(began.wait, LIMIT)
            receiving.cancel()
            for _ in range(20):
                assert "closed" not in order
                await asyncio.sleep(0.01)
            go_on.set()
            with contextlib.suppress(asyncio.CancelledError):
                await receiving
            assert order[-1] == "closed"

    asyncio.run(main())
