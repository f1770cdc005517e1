"""Nothing is dropped that anything holds; what nothing holds any more is dropped: in any order of
events, whatever fails, and whenever the agent dies."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from kybernate.core.artifacts.holds import (
    PREFIXES,
    UNPINNED_S,
    PersonHold,
    SuccessorHold,
    TransferHold,
)
from kybernate.errors import RefusedError, RetryableError
from kybernate.types import SeatState, Tier
from nodeagent.artifacts.holds import Answer, Custody
from nodeagent.seat.parts.saved import Begins, Saved
from tests.kit.machine import FakeJournal, Machine

KEEP_S, SOON_S, EVENTS = 100.0, 20.0, 120
NVME, OBJECT = Tier.NVME, Tier.OBJECT


class KilledError(Exception):
    """The agent dies here."""


class DyingJournal(FakeJournal):
    """Writes `left` times more, if that is set; then the agent dies."""

    left: int | None = None

    def _write(self, key, record) -> None:
        if self.left == 0:
            raise KilledError
        self.left = None if self.left is None else self.left - 1
        super()._write(key, record)


class Sealed(SimpleNamespace):
    """See `ports.Sealed`."""


class Storm:
    """One node: artifacts in a vault, seats that have them, and a model of who holds what."""

    def __init__(self, seed: int) -> None:
        self.rng, self.forgets = random.Random(seed), random.Random(f"forgets {seed}")
        self.machine = Machine({})
        self.vault: set[tuple[str, Tier]] = set()
        self.seats: dict[str, SimpleNamespace] = {}
        self.persons: set[str] = set()
        self.orphans: dict[str, float] = {}
        self.handed: dict[str, str] = {}
        self.settled: set[str] = set()
        self.pins: set[str] = set()
        self.pinning = random.Random(f"pins {seed}")
        self.listed = True
        self.tasks: set[asyncio.Task[None]] = set()
        self.number = 0
        self.calm = False
        self.dropped: list[str] = []
        self.wrong: list[str] = []
        self.begin()

    # --- the agent ------------------------------------------------------------------------------

    def begin(self) -> None:
        self.journal = DyingJournal(self.machine)
        world = SimpleNamespace(
            journal=self.journal,
            offloading=SimpleNamespace(limits={NVME: 1, OBJECT: 1}, vault=self),
            registry=None,
            wall=self.now,
            pinned=self.is_pinned,
        )
        settings = SimpleNamespace(keep_left_s=KEEP_S)
        # TierPlacements are listed a while after an agent has begun.
        self.listed = self.calm or not self.number or self.pinning.random() < 0.5
        self.node = SimpleNamespace(seats=self.seats, settings=settings, world=world)
        self.custody = Custody(self.node, self.aside, None, self)
        self.custody.load(self.journal.load())
        self.custody.begin()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def aside(self, what) -> None:
        task = asyncio.ensure_future(what)
        self.tasks.add(task)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def die(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.tasks.clear()

    def does(self, call) -> None:
        """The agent is told of an event; if it dies of it, so is the next one."""
        if not self.calm and self.rng.random() < 0.2:
            self.journal.left = self.rng.randint(0, 2)
        try:
            call()
        except KilledError:
            self.die()
            self.begin()
            call()
        finally:
            self.journal.left = None

    async def ask(self, hold: SuccessorHold) -> Answer:
        """See `holds.Successors.ask`."""
        if hold.until > self.now() or hold.borrowed:
            self.wrong.append(f"nobody may end {hold} yet")
        await self.misfortune()
        if any(s.saved.claimed == hold.artifact for s in self.seats.values()):
            return Answer()
        self.settled.add(hold.artifact)
        return Answer("nobody came")

    # --- TierPlacements -------------------------------------------------------------------------

    def is_pinned(self, artifact: str) -> bool:
        """See `Placements.pinned`."""
        return not self.listed or artifact in self.pins

    def pinned(self) -> None:
        """A TierPlacement names an artifact, and maybe all become known."""
        self.listed = True
        there = sorted({name for name, _ in self.vault} - self.pins)
        if there and self.pinning.random() < 0.5:
            artifact = self.pinning.choice(there)
            # What is being dropped by then is late.
            if not self.custody.is_dropping(artifact):
                self.pins.add(artifact)

    def unpinned(self) -> None:
        """It names it no more."""
        if self.pins:
            artifact = self.pinning.choice(sorted(self.pins))
            self.pins.discard(artifact)

    # --- the vault ------------------------------------------------------------------------------

    async def drop(self, artifact: str, tier: Tier, *, forget: str = "") -> None:
        """See `ports.Vault.drop`."""
        self.see_unheld(artifact, tier, forget)
        await self.misfortune()
        self.see_unheld(artifact, tier, forget)
        if not forget and (artifact, OBJECT) not in self.vault:
            raise RefusedError("it is the only copy")
        self.vault.discard((artifact, tier))
        self.dropped.append(artifact)

    async def misfortune(self) -> None:
        if not self.calm and self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.random() * SOON_S)
        if not self.calm and self.rng.random() < 0.2:
            raise self.rng.choice((OSError("the disk refuses"), RetryableError("later")))

    def see_unheld(self, artifact: str, tier: Tier, forget: str) -> None:
        """Noted: an error of a drop the agent only logs, and tries again."""
        what = f"at {self.now()} {artifact} is dropped from {tier}, but "
        if artifact in self.persons | self.handed.keys():
            self.wrong.append(what + "it is held")
        if not forget and tier is not NVME:
            self.wrong.append(what + "nobody knows why")
        if forget and artifact in self.pins:
            self.wrong.append(what + "it is pinned")
        if artifact not in self.settled and self.orphans.get(artifact, 0.0) > self.now():
            self.wrong.append(what + "a successor may come")
        if any(artifact in {s.saved.artifact, s.saved.paging} for s in self.seats.values()):
            self.wrong.append(what + "a seat has it")

    # --- events ---------------------------------------------------------------------------------

    def new(self, artifact: str, *tiers: Tier, borrowed: bool = False) -> SimpleNamespace:
        self.number += 1
        uid = f"u{self.number}"
        seat = SimpleNamespace(
            uid=uid,
            state=SeatState.PARKED_NVME,
            saved=Saved(
                artifact=artifact,
                borrowed=borrowed,
                claimed=artifact if borrowed else "",
                predecessor="u0" if borrowed else "",
                begins=Begins.ADOPTED,
                copies=frozenset(tiers),
            ),
            wishes=SimpleNamespace(restore=None),
            awaits_state=False,
        )
        self.seats[uid] = seat
        return seat

    def sealed(self) -> None:
        """A seat is parked below RAM."""
        artifact = f"ns/pod@{self.number}"
        tiers = self.rng.choice(((NVME,), (NVME, OBJECT), (OBJECT,)))
        self.vault |= {(artifact, tier) for tier in tiers}
        self.new(artifact, *tiers)

    def kept(self) -> None:
        """Somebody wants it kept."""
        there = {name for name, _ in self.vault}
        if seat := self.one(lambda s: s.saved.artifact in there):
            places = {tier: 1 for name, tier in self.vault if name == seat.saved.artifact}
            hold = PersonHold(seat.saved.artifact, f"save-{seat.saved.artifact}", seat.uid, places)
            self.does(lambda: self.custody.keep(hold).cancel())
            self.persons.add(seat.saved.artifact)

    def deleted(self) -> None:
        """By the people for whom it was kept."""
        artifact = self.pick(sorted(self.persons))
        if artifact and self.forgets.random() < 0.5:
            self.forgotten(artifact)
        elif artifact and not any(s.saved.artifact == artifact for s in self.seats.values()):
            self.vault -= {(artifact, NVME), (artifact, OBJECT)}
            self.persons.discard(artifact)
            for tier in (NVME, OBJECT):
                there = [Sealed(id=name) for name, place in self.vault if place is tier]
                self.custody.listed(tier, there)

    def forgotten(self, artifact: str) -> None:
        """By whoever had it made: nobody deletes it but the agent."""
        self.persons.discard(artifact)
        if self.custody.of(artifact).successor is None:
            self.settled.add(artifact)
        self.does(lambda: self.custody.forget(f"save-{artifact}", "it was one of many"))

    def goes_on(self) -> None:
        """A seat is awake again: what it had is worth nothing."""
        if seat := self.one(lambda s: s.saved.artifact and not s.saved.borrowed):
            self.handed.pop(seat.saved.artifact, None)
            self.settled.add(seat.saved.artifact)
            self.does(lambda: self.custody.void(seat.saved.artifact, "it continues"))
            self.let_go(seat)

    def ended(self) -> None:
        """Its container has ended."""
        if seat := self.one(lambda s: s.saved.artifact):
            artifact = seat.saved.artifact
            if seat.saved.borrowed or self.rng.random() < 0.7:
                until = self.now() + KEEP_S
                places = {tier.value: 1 for tier in (NVME, OBJECT)}
                hold = SuccessorHold(artifact, "ns", seat.uid, places, until, seat.saved.borrowed)
                if self.custody.of(artifact).successor is None:
                    self.does(lambda: self.custody.orphan(hold))
                    self.orphans[artifact] = until
            else:
                self.does(lambda: self.custody.release(artifact, seat, "it has ended"))
            self.let_go(seat)

    def let_go(self, seat) -> None:
        if self.rng.random() < 0.2:
            # Its memory comes in for a while.
            seat.saved.paging = seat.saved.artifact
            when = self.rng.random() * 2 * SOON_S
            asyncio.get_running_loop().call_later(when, self.seats.pop, seat.uid, None)
        else:
            self.seats.pop(seat.uid, None)
        seat.saved.artifact, seat.saved.borrowed, seat.state = "", False, SeatState.ACTIVE

    def claimed(self) -> None:
        """A successor continues from what a pod has left."""
        artifact = self.pick(sorted(self.orphans))
        taken = any(artifact in {s.saved.artifact, s.saved.claimed} for s in self.seats.values())
        there = artifact is not None and self.custody.of(artifact).successor is not None
        if there and not taken and not self.custody.is_dropping(artifact):
            self.new(artifact, NVME, borrowed=True)

    def outgrown(self) -> None:
        """A successor has continued."""
        if seat := self.one(lambda s: s.saved.artifact and s.saved.borrowed):
            artifact = seat.saved.artifact
            self.settled.add(artifact)
            self.does(lambda: self.custody.outlive(artifact, (NVME.value, OBJECT.value)))
            if self.custody.of(artifact).transfer is None:
                # Whoever else it came for is refused.
                self.handed.pop(artifact, None)
            seat.saved.claimed = ""
            self.let_go(seat)

    def handed_over(self) -> None:
        """Another node's artifact comes for a seat."""
        self.number += 1
        artifact, successor = f"ns/far@{self.number}", self.new("").uid
        self.does(lambda: self.custody.hand(TransferHold(artifact, "far", successor, size=1)))
        self.vault.add((artifact, NVME))
        self.handed[artifact] = successor

    def comes_again(self) -> None:
        """It is delivered once more, unless it is being dropped this moment."""
        artifact = self.pick(sorted({name for name, _ in self.vault if "far" in name}))
        if artifact and not self.custody.lock(artifact).locked():
            used = any(s.saved.artifact == artifact for s in self.seats.values())
            if not used and self.custody.of(artifact).transfer is None:
                successor = self.new("").uid
                try:
                    hold = TransferHold(artifact, "far", successor, size=1)
                    self.does(lambda: self.custody.hand(hold))
                except RetryableError:
                    return
                self.handed[artifact] = successor

    def taken(self) -> None:
        """The seat continues from what came for it."""
        artifact = self.pick(sorted(self.handed))
        seat = self.seats.get(self.handed.get(artifact, "")) if artifact else None
        # A pod has one successor, and whoever else comes is refused.
        refused = any(artifact == other.saved.claimed for other in self.seats.values())
        if seat is not None and not refused:
            seat.saved.artifact = seat.saved.claimed = artifact
            seat.saved.predecessor, seat.saved.borrowed, seat.state = (
                "far",
                True,
                SeatState.PARKED_NVME,
            )
            seat.saved.copies = frozenset({NVME})
            self.does(lambda: self.custody.taken_by(seat))
            del self.handed[artifact]

    def called_off(self) -> None:
        """The pod goes on where it was."""
        artifact = self.pick(sorted(self.handed))
        if artifact:
            successor = self.handed.pop(artifact)
            self.does(lambda: self.custody.call_off("far", successor))

    def forsaken(self) -> None:
        """The pod for which it came is gone."""
        artifact = self.pick(sorted(self.handed))
        if artifact:
            successor = self.handed.pop(artifact)
            self.seats.pop(successor, None)
            self.orphans[artifact] = self.now() + KEEP_S
            self.does(lambda: self.custody.abandon(successor))

    def one(self, wanted):
        return self.pick([seat for seat in self.seats.values() if wanted(seat)])

    def pick(self, among):
        return self.rng.choice(among) if among else None

    # --- a run ----------------------------------------------------------------------------------

    async def run(self) -> None:
        events = [
            self.sealed, self.kept, self.deleted, self.goes_on, self.ended, self.ended,
            self.claimed, self.outgrown, self.handed_over, self.comes_again, self.taken,
            self.called_off, self.forsaken, self.pinned, self.unpinned,
        ]  # fmt: skip
        for _ in range(EVENTS):
            self.rng.choice(events)()
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 1.0, SOON_S)))
            self.see_tasks()
            if self.rng.random() < 0.1:
                self.die()
                self.begin()
        await self.all_end()

    def see_tasks(self) -> None:
        assert not self.wrong
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.discard(task)
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def all_end(self) -> None:
        """Every hold ends: nothing is left of anything."""
        self.calm = self.listed = True
        self.pins.clear()
        for _ in range(3):
            while self.one(lambda s: s.saved.artifact and s.saved.borrowed):
                self.outgrown()
            while self.one(lambda s: s.saved.artifact):
                self.goes_on()
            while self.handed:
                self.called_off()
            self.seats.clear()
            while self.persons:
                self.deleted()
            await asyncio.sleep(10 * KEEP_S)
            self.see_tasks()
        assert self.vault == set()
        assert not [key for key in self.machine.journal if key.startswith(PREFIXES)]
        assert self.custody.all() == ()
        assert not [task for task in self.tasks if not task.done()]


@pytest.mark.parametrize("seed", range(300))
async def test_nothing_is_dropped_under_a_hold_and_nothing_leaks(seed):
    storm = Storm(seed)
    await storm.run()
    assert storm.dropped


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("end", ["void", "outlive", "release", "forget"])
async def test_what_is_pinned_goes_when_its_pin_has_ended(end, restarts):
    """Whatever would have dropped it: the drop waits, also over a restart of the agent."""
    storm = Storm(0)
    storm.calm = True
    name = "ns/pod@1"
    storm.vault |= {(name, NVME), (name, OBJECT)}
    storm.pins.add(name)
    if end == "forget":
        storm.custody.keep(PersonHold(name, "save", "u0", {NVME: 1})).cancel()
    {
        "void": lambda: storm.custody.void(name, "nobody came"),
        "outlive": lambda: storm.custody.outlive(name, (NVME.value, OBJECT.value)),
        "release": lambda: storm.custody.release(name, storm.new(name), "a newer one"),
        "forget": lambda: storm.custody.forget("save", "too many"),
    }[end]()
    storm.seats.clear()
    await asyncio.sleep(KEEP_S)
    if restarts:
        storm.die()
        storm.begin()
    await asyncio.sleep(10 * KEEP_S)
    assert storm.vault == {(name, OBJECT)}, "a pin keeps one copy, and NVMe is for parks"
    assert storm.custody.bytes_in(NVME) == 0
    assert not storm.custody.is_dropping(name)
    storm.pins.clear()
    await asyncio.sleep(UNPINNED_S / 2)
    assert storm.vault, "a TierPlacement that is replaced lets nothing go"
    await asyncio.sleep(2 * UNPINNED_S)
    assert storm.vault == set()
    assert not [key for key in storm.machine.journal if key.startswith(PREFIXES)]


async def test_what_is_pinned_leaves_nvme_once_the_store_has_it():
    """Until then it counts there, also what a seat has left that needs it no more."""
    storm = Storm(0)
    storm.calm, name = True, "ns/pod@1"
    storm.vault.add((name, NVME))
    storm.pins.add(name)
    seat = storm.new(name, NVME)
    seat.saved.size = 7
    storm.custody.release(name, seat, "its pod has ended")
    storm.seats.clear()
    await asyncio.sleep(10 * KEEP_S)
    assert storm.vault == {(name, NVME)}
    assert storm.custody.bytes_in(NVME) == 7
    storm.vault.add((name, OBJECT))
    storm.custody.packed(name)
    await asyncio.sleep(1)
    assert storm.vault == {(name, OBJECT)}
    assert storm.custody.bytes_in(NVME) == 0
    storm.pins.clear()
    await asyncio.sleep(3 * UNPINNED_S)
    assert storm.vault == set()
    assert storm.custody.all() == ()


async def test_what_somebody_else_holds_leaves_nvme_for_no_pin():
    storm = Storm(0)
    storm.calm, name = True, "ns/pod@1"
    storm.vault |= {(name, NVME), (name, OBJECT)}
    storm.pins.add(name)
    storm.custody.void(name, "nobody came")
    storm.custody.keep(PersonHold(name, "save", "u0", {NVME: 1})).cancel()
    await asyncio.sleep(10 * KEEP_S)
    assert storm.vault == {(name, NVME), (name, OBJECT)}


async def test_a_pin_that_comes_back_in_time_keeps_what_it_kept():
    storm = Storm(0)
    storm.calm = True
    storm.vault.add(("ns/pod@1", NVME))
    storm.pins.add("ns/pod@1")
    storm.custody.void("ns/pod@1", "nobody came")
    await asyncio.sleep(KEEP_S)
    for _ in range(5):
        storm.pins.clear()
        await asyncio.sleep(UNPINNED_S / 2)
        storm.pins.add("ns/pod@1")
        await asyncio.sleep(UNPINNED_S)
    assert storm.vault == {("ns/pod@1", NVME)}


async def test_what_was_not_needed_goes_though_its_seat_has_an_own_artifact_at_once():
    """It continued from the copy in the object store, and is parked again before anybody looks."""

    storm = Storm(0)
    storm.calm = True
    storm.vault.add(("ns/pod@1", NVME))
    storm.custody.hand(TransferHold("ns/pod@1", "u0", "u1"))
    seat = storm.new("ns/pod@1", OBJECT, borrowed=True)
    assert storm.custody.taken_by(seat) == ""
    seat.saved.own()
    seat.saved.sealed("ns/own@2", 1)
    assert storm.custody.taken_by(seat) == ""
    await asyncio.sleep(KEEP_S)
    assert storm.vault == set()


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_is_called_off_while_another_seat_has_it_goes_after_that(restarts):
    """A copy begins from what comes for a successor: nothing else would ever drop it."""
    storm = Storm(0)
    storm.calm = True
    storm.vault.add(("ns/pod@1", NVME))
    successor, copy = storm.new(""), storm.new("ns/pod@1", NVME)
    storm.custody.hand(TransferHold("ns/pod@1", "u0", successor.uid))
    storm.custody.call_off("u0", successor.uid)
    if restarts:
        storm.die()
        storm.begin()
    await asyncio.sleep(KEEP_S)
    assert storm.vault == {("ns/pod@1", NVME)}
    copy.saved.artifact = ""
    await asyncio.sleep(KEEP_S)
    assert storm.vault == set()
    assert not [key for key in storm.machine.journal if key.startswith(PREFIXES)]


async def test_what_is_called_off_once_the_successor_has_it_is_that_seats():
    storm = Storm(0)
    storm.calm = True
    successor = storm.new("ns/pod@1", NVME, borrowed=True)
    storm.custody.hand(TransferHold("ns/pod@1", "u0", successor.uid))
    storm.custody.call_off("u0", successor.uid)
    assert not storm.custody.of("ns/pod@1").transfer.off
    assert storm.custody.taken_by(successor) == "ns/pod@1"
    assert storm.custody.all() == ()


@pytest.mark.parametrize(
    ("state", "drops"),
    [
        (SeatState.WAITING, 0),
        (SeatState.UNVERIFIED, 0),
        (SeatState.PARKED_NVME, 0),
        (SeatState.ACTIVE, 1),
    ],
)
async def test_a_drop_waits_for_a_seat_that_may_come_back_from_it(state, drops):
    storm = Storm(0)
    tried = []

    async def drop(artifact, tier, *, forget):
        assert forget
        tried.append((artifact, tier))

    storm.drop = drop
    seat = storm.new("ns/pod@1", NVME)
    seat.state = state
    storm.custody.release("ns/pod@1", seat, "another state is newer")
    await asyncio.sleep(1.0)
    assert len({artifact for artifact, _ in tried}) == drops


async def test_an_unexpected_error_leaves_no_artifact_without_its_owner():
    storm = Storm(0)
    storm.calm = True
    storm.vault.add(("ns/pod@1", NVME))
    drop, failed = storm.drop, []

    async def fails_once(artifact, tier, *, forget):
        if not failed:
            failed.append(artifact)
            raise ValueError("a bug")
        storm.settled.add(artifact)
        await drop(artifact, tier, forget=forget)

    storm.drop = fails_once
    storm.custody.void("ns/pod@1", "nobody came")
    await asyncio.sleep(KEEP_S)
    assert failed
    assert storm.vault == set()
