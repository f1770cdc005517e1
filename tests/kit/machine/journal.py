"""The journal, in which the agent may find its sudden end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping

    from tests.kit.machine.world import Machine


class FakeJournal:
    """Implements `ports.Journal`. Fault: disk-full, at the next write that somebody awaits, or that
    is synced.

    With the machine's `crash_at` = n the agent dies at the n-th write; `crash_after` says whether
    the record is still written.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.damage = machine.journal_damage

    def load(self) -> Mapping[str, Mapping[str, object]]:
        """All records, each as an agent a version ahead might have written it."""
        newer = {"member of a newer version": 1}
        return {key: {**record, **newer} for key, record in self._machine.journal.items()}

    def put(
        self, key: str, record: Mapping[str, object], *, synced: bool, late: bool = False
    ) -> Awaitable[None]:
        """Kept, unless the agent is to be killed here."""
        self._write(key, record)
        written = _Written(self._machine)
        return _known(written) if synced else written

    def delete(self, key: str) -> Awaitable[None]:
        """Forgotten."""
        self._write(key, None)
        return _Written(self._machine)

    def close(self) -> None:
        """Nothing to close."""

    def _write(self, key: str, record: Mapping[str, object] | None) -> None:
        machine = self._machine
        machine.journal_writes += 1
        crashes = machine.crash_at is not None and machine.journal_writes >= machine.crash_at
        if not crashes or machine.crash_after:
            before = (key, machine.journal.get(key))
            machine.unsynced.append(before)
            machine.written.append(before)
            _set(machine.journal, key, record)
        if crashes:
            asyncio.get_running_loop().stop()
            raise machine.crash_with


class _Written:
    """The answer to a write. Awaited, it and all before it are out of the agent's hands."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._upto = machine.journal_writes

    def out(self) -> None:
        """Nothing takes them back. Raises OSError if the disk is full."""
        machine = self._machine
        if machine.fault("disk-full"):
            raise OSError(28, "No space left on device")
        later = machine.journal_writes - self._upto
        del machine.unsynced[: max(0, len(machine.unsynced) - later)]

    def __await__(self) -> Generator[None, None, None]:
        self.out()
        return
        yield


def lose_tail(machine: Machine, count: int) -> None:
    """Take back the last `count` writes, as far as nobody had their answer: the agent was killed
    before its thread had written them."""
    for _ in range(min(count, len(machine.unsynced))):
        key, before = machine.unsynced.pop()
        _set(machine.journal, key, before)


def spoil(machine: Machine, back: int) -> None:
    """Make the line unreadable that was written `back` lines ago, whether it was synced or not."""
    if back >= len(machine.written):
        return
    lines = list(machine.written)
    key, before = lines[-1 - back]
    if all(later != key for later, _ in lines[len(lines) - back :]):
        _set(machine.journal, key, before)
    machine.journal_damage = "1 of the journal's lines can't be read"


def _set(
    journal: dict[str, Mapping[str, object]], key: str, record: Mapping[str, object] | None
) -> None:
    if record is None:
        journal.pop(key, None)
    else:
        journal[key] = record


def _known(written: _Written) -> Awaitable[None]:
    """What is synced is so, or has failed, at once."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        written.out()
    except OSError as error:
        future.set_exception(error)
    else:
        future.set_result(None)
    return future
