"""Limits, records and logs: the parts of CRIU's adapter that need no container."""

from __future__ import annotations

import asyncio
import json
import math
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.adapters.criu import Tools, limits, running
from kybernate.adapters.criu.checks import undumpable
from kybernate.adapters.criu.container import Container, state_of
from kybernate.adapters.criu.record import FILE, Record
from kybernate.adapters.kernel import smallfile
from kybernate.core.artifacts.privileges import Privileges
from kybernate.errors import ConfigError, NotFoundError, RestoreError
from kybernate.lib.deadline import Deadline
from kybernate.ports import DumpState

if TYPE_CHECKING:
    from pathlib import Path

ROOM = limits.ROOM


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")
    return folder


def read(folder: Path, name: str) -> str:
    return (folder / name).read_text().strip()


def test_version_2_is_lifted_pod_first_and_put_back(tmp_path: Path) -> None:
    pod = group(tmp_path / "pod", cpu__max="50000 100000", memory__max="max", memory__high="max")
    own = group(pod / "one", cpu__max="20000 100000", memory__max="1000000", memory__high="900000")
    limits.lift({"": own}, tmp_path)
    assert read(pod, "cpu.max") == read(own, "cpu.max") == "max 100000"
    assert read(pod, "memory.max") == "max"
    assert read(own, "memory.max") == str(1000000 + ROOM)
    written = list(json.loads((tmp_path / limits.FILE).read_text()))
    assert written[0] == str(pod / "cpu.max")
    limits.put_back(tmp_path)
    assert read(pod, "cpu.max") == "50000 100000"
    assert read(own, "cpu.max") == "20000 100000"
    assert read(own, "memory.max") == "1000000"
    assert read(own, "memory.high") == "900000"
    assert not (tmp_path / limits.FILE).exists()


def test_what_a_killed_agent_left_lifted_is_put_back(tmp_path: Path) -> None:
    own = group(tmp_path / "pod/one", cpu__cfs_quota_us="20000")
    group(tmp_path / "pod", cpu__cfs_quota_us="-1")
    memory = group(tmp_path / "mem/pod/one", memory__limit_in_bytes=str(1 << 30))
    group(tmp_path / "mem/pod", memory__limit_in_bytes="9223372036854771712")
    limits.lift({"cpu": own, "memory": memory}, tmp_path)
    assert read(own, "cpu.cfs_quota_us") == "-1"
    limits.lift({"cpu": own, "memory": memory}, tmp_path)
    assert read(memory, "memory.limit_in_bytes") == str((1 << 30) + ROOM), "lifted once, not twice"
    limits.put_back(tmp_path)
    assert read(own, "cpu.cfs_quota_us") == "20000"
    assert read(memory, "memory.limit_in_bytes") == str(1 << 30)
    limits.put_back(tmp_path)


def test_a_limit_that_the_kubelet_has_changed_meanwhile_stays(tmp_path: Path) -> None:
    pod = group(tmp_path / "pod", cpu__max="max 100000", memory__max=str(1 << 30))
    own = group(pod / "one", cpu__max="20000 100000", memory__max=str((1 << 30) - 5))
    limits.lift({"": own}, tmp_path)
    (own / "cpu.max").write_text("40000 100000\n")
    (pod / "memory.max").write_text(f"{1 << 31}\n")
    lifted = (1 << 30) - 5 + ROOM
    (own / "memory.max").write_text(f"{lifted // 4096 * 4096}\n")  # as the kernel has it
    limits.put_back(tmp_path)
    assert read(own, "cpu.max") == "40000 100000"
    assert read(pod, "memory.max") == str(1 << 31)
    assert read(own, "memory.max") == str((1 << 30) - 5)
    assert not (tmp_path / limits.FILE).exists()


def test_groups_are_found_in_both_versions(tmp_path: Path) -> None:
    proc = group(tmp_path / "proc/7", cgroup="5:cpu,cpuacct:/a\n3:name=systemd:/a\n0::/a")
    first = tmp_path / "v1"
    for name in ("cpu,cpuacct", "systemd", "unified"):
        (first / name / "a").mkdir(parents=True)
    found = limits.groups_of(7, first, proc.parent)
    assert found["cpu"] == found["cpuacct"] == first / "cpu,cpuacct" / "a"
    assert found["name=systemd"] == first / "systemd" / "a"
    second = group(tmp_path / "v2", cgroup__controllers="cpu")
    (second / "a").mkdir()
    assert limits.groups_of(7, second, proc.parent)[""] == second / "a"


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("kyb-run", DumpState.RUNNING),
        ("kyb-hold", DumpState.HOLDING),
        ("kyb-parked", DumpState.PARKED),
    ],
)
def test_state_is_process_1s_own_word(tmp_path: Path, name: str, state: DumpState) -> None:
    group(tmp_path / "7", comm=name)
    assert state_of(7, tmp_path) is state


@pytest.mark.parametrize("name", ["sh", "", "kyb-tree"])
def test_a_process_that_is_no_kyb_init_has_no_state(tmp_path: Path, name: str) -> None:
    group(tmp_path / "7", comm=name)
    with pytest.raises(NotFoundError):
        state_of(7, tmp_path)
    with pytest.raises(NotFoundError):
        state_of(8, tmp_path)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    one = Record(7, 900, ("/dev/null", "pipe:[1]", ""), {12: (0, 3)}, (9,), ("10.0.0.1",))
    one.write(tmp_path)
    assert Record.read(tmp_path) == one
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_record_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, value) -> None:
    folder = tmp_path_factory.mktemp("record")
    for text in (json.dumps(value), json.dumps({"format": 1, "tree": value, "pinned": value})):
        (folder / FILE).write_text(text)
        with pytest.raises(RestoreError):
            Record.read(folder)


@pytest.mark.parametrize(("target", "told"), [("/dev/pts/3", 1), ("pipe:[7]", 0)])
def test_a_terminal_is_told(tmp_path: Path, target: str, told: int) -> None:
    proc = group(tmp_path / "proc/7", comm="kyb-run", stat="7 (kyb-run) S" + " 0" * 50)
    (proc / "fd").mkdir()
    (proc / "fd/1").symlink_to(target)
    one = Container(7, tmp_path / "handle", 0, tmp_path, proc.parent)
    assert sum("terminal" in sentence for sentence in undumpable.find(one, {})) == told


FREEZES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "version 1": ({"freezer__state": "FREEZING"}, {"freezer__state": "FROZEN"}),
    "version 2": (
        {"cgroup__freeze": "1", "cgroup__events": "populated 1\nfrozen 0"},
        {"cgroup__events": "populated 1\nfrozen 1"},
    ),
}


@pytest.mark.parametrize("version", FREEZES)
async def test_a_tree_may_still_freeze_when_criu_has_ended(tmp_path: Path, version: str) -> None:
    """Each of its processes needs a processor once more before it stands."""
    freezes, stands = FREEZES[version]
    one = Container(7, group(tmp_path / "handle", **freezes), 0, tmp_path, tmp_path)
    looked = asyncio.create_task(one.stands(Deadline(60.0)))
    await asyncio.sleep(0.01)
    assert not looked.done()
    group(one.handle, **stands)
    assert await looked
    group(one.handle, **freezes)
    assert not await one.stands(Deadline(0.0)), "it never stands"


@pytest.mark.parametrize(
    "thawed",
    [{}, {"freezer__state": "THAWED"}, {"cgroup__freeze": "0", "cgroup__events": "frozen 0"}],
)
async def test_a_tree_that_was_thawed_is_not_waited_for(
    tmp_path: Path, thawed: dict[str, str]
) -> None:
    one = Container(7, group(tmp_path / "handle", **thawed), 0, tmp_path, tmp_path)
    assert not await one.stands(Deadline(math.inf))


def test_reasons_of_criu_are_told_in_words() -> None:
    said = ["(00.01) Error (criu/sk-inet.c:185): inet: In-flight connection (l) for 5"]
    assert "waits to be accepted" in undumpable.from_log(said)
    assert undumpable.from_log(["Error (criu/x.c:1): No space left on device"]) == ""
    assert undumpable.from_log([]) == ""


def test_a_cache_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tools = Tools(tmp_path / "enter", tmp_path / "criu", tmp_path / "cache")
    tools.check()
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(ConfigError):
        tools.check()


@pytest.mark.parametrize(
    ("version1", "lock", "found"),
    [
        (True, running.ENTERED, "tasks"),
        (True, running.PAGES, "tasks"),
        (False, running.ENTERED, ""),
        (False, running.PAGES, "cgroup.procs"),
    ],
)
def test_a_cgroup_is_joined_the_quick_way(
    tmp_path: Path, version1: bool, lock: str, found: str
) -> None:
    files = {"cgroup__procs": "", **({"tasks": ""} if version1 else {})}
    run = running.Run(argv=(), images=tmp_path, log="", lock=lock)
    with ExitStack() as stack:
        opened = running.joined(stack, group(tmp_path / "one", **files), run)
        assert os.path.samestat(os.fstat(opened), (tmp_path / "one" / found).stat())


def test_a_name_that_is_half_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(("kyb-hol\n", "kyb-hold\n"))
    monkeypatch.setattr(smallfile, "read", lambda _: next(names))
    assert state_of(1, tmp_path) is DumpState.HOLDING


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("/dev/infiniband/uverbs0", "NCCL_IB_DISABLE=1"),
        ("/dev/nvidia-fs3", "CUFILE_FORCE_COMPAT_MODE=true"),
        ("/dev/nvidia-uvm", ""),
        ("/dev/nvidia0", ""),
    ],
)
def test_devices_that_reach_into_gpu_memory_are_told(tmp_path: Path, name: str, told: str) -> None:
    """Mapped or open; of a GPU's own devices nothing is said."""
    (tmp_path / "maps").write_text(f"7f00-7f10 rw-s 00000000 00:05 7       {name}\n")
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd/7").symlink_to("/dev/ptmx")  # some device: its name is what is judged
    none: frozenset[int] = frozenset()
    around = undumpable._Around({}, none, none, Privileges((), ()), {})
    found = [
        *undumpable._mapped(str(tmp_path), around, {}),
        *undumpable._opened(str(tmp_path), around, {7: name}),
    ]
    assert len(found) == (2 if told else 0)
    assert all(f"the device {name} " in one and told in one for one in found)
