"""The journal on a real file, cut off at every byte."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
import time
import zlib

import pytest

from kybernate.adapters.files.journal import FileJournal
from kybernate.errors import RefusedError
from tests.kit.clock import until


def write(path, *steps, epoch="boot-1", rewrite_at=4096):
    async def main():
        journal = FileJournal(path, epoch, rewrite_at)
        journal.load()
        for key, value in steps:
            if value is None:
                await journal.delete(key)
            else:
                await journal.put(key, {"n": value}, synced=True)
        journal.close()

    asyncio.run(main())


def read(path, epoch="boot-1"):
    journal = FileJournal(path, epoch)
    records = {key: record["n"] for key, record in journal.load().items()}
    journal.close()
    return records


def test_the_last_record_of_each_key_counts(tmp_path):
    write(tmp_path / "j", ("a", 1), ("b", 1), ("a", 2), ("b", None), ("c", 3))
    assert read(tmp_path / "j") == {"a": 2, "c": 3}


def test_another_boot_begins_anew(tmp_path):
    write(tmp_path / "j", ("a", 1))
    assert read(tmp_path / "j", "boot-2") == {}
    assert read(tmp_path / "j", "boot-1") == {}


def test_cut_off_anywhere_it_holds_what_was_whole(tmp_path):
    steps = [("a", 1), ("b", 2), ("a", 3), ("b", None), ("c", 4)]
    write(tmp_path / "j", *steps)
    data = (tmp_path / "j").read_bytes()
    whole = [{}]
    for key, value in steps:
        after = {**whole[-1], key: value}
        whole.append({k: v for k, v in after.items() if v is not None})
    for length in range(len(data) + 1):
        (tmp_path / "cut").write_bytes(data[:length])
        lines = max(0, data[:length].count(b"\n") - 1)
        assert read(tmp_path / "cut") == whole[lines]


def test_each_flipped_bit_is_told_and_costs_one_line_or_two(tmp_path):
    """Two where it was the newline between them."""
    steps = [("a", 1), ("b", 2), ("c", 3), ("a", 4)]
    write(tmp_path / "j", *steps)
    whole = (tmp_path / "j").read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for at in range(len(whole)):
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << (at % 8)
        folder = tmp_path / str(at)
        folder.mkdir()
        (folder / "j").write_bytes(bytes(spoilt))
        journal = FileJournal(folder / "j", "boot-1")
        records = {key: record["n"] for key, record in journal.load().items()}
        journal.close()
        line = sum(end < at for end in ends) - 1
        lost = {line, line + 1} if at in ends else {line}
        kept = [step for number, step in enumerate(steps) if number not in lost]
        if at == ends[-1]:  # its newline alone: it was whole
            kept = steps
        assert records == dict(kept), at
        if records != dict(steps):
            assert "of the journal's lines can't be read" in journal.damage
        if journal.damage:
            (aside,) = folder.glob("j.damaged-*")
            assert str(aside) in journal.damage
            assert aside.read_bytes() == bytes(spoilt)
            assert not asides_after_another_start(folder, journal.damage)


def asides_after_another_start(folder, damage):
    """Files kept aside beyond the one, after the next agent began: what was lost stays told."""
    journal = FileJournal(folder / "j", "boot-1")
    journal.load()
    journal.close()
    assert journal.damage == damage
    return sorted(folder.glob("j.damaged-*"))[1:]


def test_what_was_lost_is_forgotten_with_the_boot(tmp_path):
    write(tmp_path / "j", ("a", 1), ("b", 2))
    data = bytearray((tmp_path / "j").read_bytes())
    data[data.index(b'"a"')] ^= 1
    (tmp_path / "j").write_bytes(bytes(data))
    assert read(tmp_path / "j") == {"b": 2}
    journal = FileJournal(tmp_path / "j", "boot-2")
    assert journal.load() == {}
    assert journal.damage == ""
    journal.close()


def test_a_boot_leaves_what_outlasts_it_and_so_does_the_next(tmp_path):
    def outlasting(records):
        return {f"then/{key}": record for key, record in records.items() if key != "b"}

    write(tmp_path / "j", ("a", 1), ("b", 2))
    for boot, known in (
        ("boot-2", {"then/a"}),
        ("boot-2", {"then/a"}),
        ("boot-3", {"then/then/a"}),
    ):
        journal = FileJournal(tmp_path / "j", boot, outlasting=outlasting)
        assert set(journal.load()) == known
        journal.close()


def test_a_few_damaged_files_are_kept_and_no_more(tmp_path):
    for number in range(7):
        write(tmp_path / "j", (f"k{number}", 1))
        data = bytearray((tmp_path / "j").read_bytes())
        data[-4] ^= 1
        (tmp_path / "j").write_bytes(bytes(data))
        read(tmp_path / "j")
    assert len(list(tmp_path.glob("j.damaged-*"))) == 4


def line(text):
    return b"%08x %s\n" % (zlib.crc32(text), text)


def test_the_journal_of_the_version_before_is_read(tmp_path):
    (tmp_path / "j").write_bytes(line(b'{"e":"boot-1"}') + line(b'{"k":"a","v":{"n":7}}'))
    assert read(tmp_path / "j") == {"a": 7}


def test_a_newer_format_is_refused_and_stays_as_it_is(tmp_path):
    newer = line(b'{"e":"boot-1","f":3}') + line(b'{"k":"a","v":{"n":7}}')
    (tmp_path / "j").write_bytes(newer)
    journal = FileJournal(tmp_path / "j", "boot-1")
    with pytest.raises(RefusedError, match="reads formats up to 2: run the version"):
        journal.load()
    journal.close()
    assert (tmp_path / "j").read_bytes() == newer


def test_after_a_cut_it_goes_on(tmp_path):
    write(tmp_path / "j", ("a", 1))
    with (tmp_path / "j").open("ab") as file:
        file.write(b"0bad")
    write(tmp_path / "j", ("b", 2))
    assert read(tmp_path / "j") == {"a": 1, "b": 2}


def test_it_does_not_grow_for_ever(tmp_path):
    write(tmp_path / "j", *[("a", n) for n in range(200)], rewrite_at=20)
    assert (tmp_path / "j").read_bytes().count(b"\n") < 25
    assert read(tmp_path / "j") == {"a": 199}


@pytest.mark.real_time
async def test_an_answer_that_nobody_awaits_is_written_in_its_turn(tmp_path):
    journal = FileJournal(tmp_path / "j", "boot-1")
    journal.load()
    first = journal.put("a", {"n": 1}, synced=False)
    await journal.put("a", {"n": 2}, synced=True)
    await first
    journal.close()
    assert read(tmp_path / "j") == {"a": 2}


@pytest.mark.real_time
async def test_what_is_put_at_once_is_written_at_once(tmp_path):
    journal = FileJournal(tmp_path / "j", "boot-1")
    journal.load()
    answers = [journal.put(f"k{n}", {"n": n}, synced=n % 2 == 0) for n in range(100)]
    answers.append(journal.delete("k7"))
    for answer in answers:
        await answer
    journal.close()
    assert read(tmp_path / "j") == {f"k{n}": n for n in range(100) if n != 7}


async def test_late_records_go_with_the_next_that_somebody_awaits(tmp_path, monkeypatch):
    journal = FileJournal(tmp_path / "j", "boot-1")
    journal.load()
    whole, writes = os.write, []
    monkeypatch.setattr(os, "write", lambda fd, data: (writes.append(data), whole(fd, data))[1])
    for n in range(5):
        journal.put("a", {"n": n}, synced=False, late=True)
        await asyncio.sleep(0.001)
        journal._writer.submit(lambda: None).result()  # whatever it was given is done
    answer = journal.put("b", {"n": 5}, synced=False)
    journal._writer.submit(lambda: None).result()
    await answer
    assert [lines.count(b"\n") for lines in writes] == [6]
    journal.close()
    assert read(tmp_path / "j") == {"a": 4, "b": 5}


@pytest.mark.real_time
@pytest.mark.parametrize("ends", ["in a while", "closed", "another is not late"])
async def test_a_late_record_that_nobody_awaits_is_written_all_the_same(tmp_path, ends):
    journal = FileJournal(tmp_path / "j", "boot-1")
    journal.load()
    journal.put("a", {"n": 1}, synced=False, late=True)
    if ends == "another is not late":
        journal.put("b", {"n": 2}, synced=False)
    if ends != "closed":
        assert await until(lambda: b'"a"' in (tmp_path / "j").read_bytes(), 60)
    journal.close()
    assert read(tmp_path / "j")["a"] == 1


@pytest.mark.real_time
async def test_one_who_stops_waiting_takes_the_answer_from_nobody(tmp_path, monkeypatch):
    journal = FileJournal(tmp_path / "j", "boot-1")
    journal.load()
    slow = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (time.sleep(0.1), slow(fd)))

    async def put(n):
        await journal.put(f"k{n}", {"n": n}, synced=True)

    tasks = [asyncio.create_task(put(n)) for n in range(3)]
    await asyncio.sleep(0.02)
    tasks[1].cancel()
    await asyncio.gather(tasks[0], tasks[2])
    journal.close()
    assert read(tmp_path / "j") == {"k0": 0, "k1": 1, "k2": 2}


@pytest.mark.real_time
async def test_a_disk_that_refuses_is_reported(tmp_path):
    journal = FileJournal(tmp_path / "j", "boot-1")
    journal.load()
    os.close(journal._fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await journal.put("a", {"n": 1}, synced=True)
    journal._fd = -1
    journal.close()


@pytest.mark.real_time
async def test_after_a_disk_was_full_in_mid_line_later_records_are_read_again(
    tmp_path, monkeypatch
):
    whole = os.write

    def half(fd, data):
        monkeypatch.setattr(os, "write", full)
        return whole(fd, data[: len(data) // 2])

    def full(fd, data):
        monkeypatch.setattr(os, "write", whole)
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = FileJournal(tmp_path / "j", "boot-1")
    journal.load()
    await journal.put("a", {"n": 1}, synced=True)
    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        await journal.put("a", {"n": 2}, synced=True)
    await journal.put("b", {"n": 3}, synced=True)
    await journal.put("c", {"n": 4}, synced=True)
    journal.close()
    assert read(tmp_path / "j") == {"a": 2, "b": 3, "c": 4}


def opened(folder):
    """How many descriptors of ours are of what lies there: others of this process come and go."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(link).startswith(str(folder)) for link in links)


@pytest.mark.real_time
async def test_a_folder_that_is_not_synced_costs_no_descriptor_and_no_record(tmp_path, monkeypatch):
    whole = os.fsync

    def no_folders(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        whole(fd)

    journal = FileJournal(tmp_path / "j", "boot-1", rewrite_at=1)
    journal.load()
    await journal.put("a", {"n": 1}, synced=True)
    before = opened(tmp_path)
    monkeypatch.setattr(os, "fsync", no_folders)
    for n in range(2, 9):
        with pytest.raises(OSError, match="Input/output"):
            await journal.put("a", {"n": n}, synced=True)
    assert opened(tmp_path) == before
    monkeypatch.setattr(os, "fsync", whole)
    await journal.put("b", {"n": 1}, synced=True)
    journal.close()
    assert read(tmp_path / "j") == {"a": 8, "b": 1}


def test_two_agents_never_write_one_journal(tmp_path):
    first = FileJournal(tmp_path / "j", "boot-1")
    first.load()
    second = FileJournal(tmp_path / "j", "boot-1", patience=0.1)
    with pytest.raises(RefusedError, match="another agent uses"):
        second.load()
    second.close()
    first.close()
    third = FileJournal(tmp_path / "j", "boot-1", patience=0.1)
    assert third.load() == {}
    third.close()


def test_a_new_agent_waits_a_little_for_the_old_one_to_end(tmp_path):
    first = FileJournal(tmp_path / "j", "boot-1")
    first.load()
    threading.Timer(0.2, first.close).start()
    second = FileJournal(tmp_path / "j", "boot-1", patience=5.0)
    assert second.load() == {}
    second.close()
