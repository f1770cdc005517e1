"""A box that root has: models leave host RAM for NVMe by CRIU, and come back as they were."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from images import criu
from kybernate.errors import KybernateError
from kybernate.local.folders import folders
from kybernate.local.nvme import BoxFreezer
from tests.local.conftest import ROOT, Box, boxes, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def box(libraries: Path) -> Iterator[Box]:
    """Root's, with one GPU of 64 MiB and a folder for models that leave RAM."""
    if os.geteuid() != 0 or not shutil.which("mount") or not (ROOT / "build/kyb-enter").exists():
        pytest.skip("needs root, mount and build/kyb-enter")
    try:
        program = criu.for_this_machine(print)
    except KybernateError as error:
        pytest.skip(f"needs CRIU: {error}")
    for made in boxes(libraries, 1, user=()):
        made.keys["tiers"] = {"nvme": str(made.folder / "nvme"), "criu": str(program)}
        yield made
        # Before it is cleared away: what stands frozen in a cgroup of version 1 can't end.
        if made.process is not None:
            made.end(signal.SIGKILL)
        freezer = BoxFreezer(folders(made.environment))
        for handle in freezer.frozen():
            freezer.thaw(handle)
    for uid in freezer.models():
        freezer.forget(uid)


def servers(box: Box, model: str) -> list[int]:
    """The processes of the model's server, which a parked one on NVMe hasn't got. Tests beside this
    one have models of the same name."""
    found, mine = [], f"SIMGPU_DIR={box.gpus}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                its = (entry / "environ").read_bytes().split(b"\0")
                wanted = {b"tests.workloads.toy_server", model.encode()} <= {*words} and mine in its
                if wanted and b"--local" not in words:
                    found.append(int(entry.name))
    return found


def artifacts(box: Box) -> list[Path]:
    """Their manifests. Some may be deleted meanwhile, which os.walk, unlike rglob, takes."""
    found = [Path(at, one) for at, _, names in os.walk(box.folder / "nvme") for one in names]
    return [path for path in found if path.name.startswith("manifest")]


def on_nvme(box: Box, model: str) -> None:
    """Returns once all of it is there."""
    assert servers(box, model) != []
    eventually(lambda: f"{model} (box/{model}): dumping -> parked-nvme" in box.log)
    assert servers(box, model) == []


def test_an_idle_model_goes_to_nvme_and_answers_again_where_it_was(box: Box) -> None:
    box.has("a", idle={"ram": "1s"})
    box.has("b")
    box.start()
    before = box.ask("a")
    box.ask("b")
    on_nvme(box, "a")
    after = box.ask("a")
    assert (after["boot"], after["pid"]) == (before["boot"], before["pid"])
    assert after["counter"] == before["counter"] + 1
    assert after["device"] == [before["device"][0] + 1]
    assert box.never_two()


def test_what_has_no_room_in_ram_goes_to_nvme(box: Box) -> None:
    box.keys["tiers"]["ram"] = "100MiB"
    for name in "abc":
        box.has(name)
    box.start()
    before = {name: box.ask(name) for name in "abc"}
    for name in "abcabc":
        assert box.ask(name)["boot"] == before[name]["boot"]
    assert "dumping -> parked-nvme" in box.log


def ask_in_vain(box: Box) -> None:
    with contextlib.suppress(OSError, AssertionError):
        box.ask("a")


@pytest.mark.parametrize("left", ["parked-nvme", "dumping", "restoring"])
def test_killed_with_a_model_on_its_way_the_next_one_continues_with_it(box: Box, left: str) -> None:
    box.has("a", idle={"ram": "1s"})
    box.has("b")
    box.start()
    before = box.ask("a")
    box.ask("b")
    if left == "dumping":
        eventually(lambda: "a (box/a): parked -> dumping" in box.log)
    else:
        on_nvme(box, "a")
    asking = threading.Thread(target=ask_in_vain, args=(box,))
    if left == "restoring":
        asking.start()
        eventually(lambda: "a (box/a): parked-nvme -> restoring" in box.log)
    box.end(signal.SIGKILL)
    if left == "restoring":
        asking.join()
    box.start()
    after = box.ask("a")
    assert (after["boot"], after["counter"]) == (before["boot"], before["counter"] + 1)
    assert box.never_two()


def test_a_model_whose_port_is_taken_meanwhile_begins_again_once_it_is_free(box: Box) -> None:
    box.has("a", idle={"ram": "1s"})
    box.has("b")
    box.start()
    before = box.ask("a")
    box.ask("b")
    on_nvme(box, "a")
    with socket.create_server(("127.0.0.1", box.first)):
        asking = threading.Thread(target=ask_in_vain, args=(box,))
        asking.start()
        eventually(lambda: "could not be recreated from its artifact" in box.log)
    asking.join()
    assert box.ask("a")["boot"] != before["boot"]


def test_a_model_is_unloaded_from_nvme(box: Box) -> None:
    box.has("a", idle={"ram": "1s"})
    box.has("b")
    box.start()
    box.ask("a"), box.ask("b")
    on_nvme(box, "a")
    request = urllib.request.Request(
        f"http://127.0.0.1:{box.port}/api/models/unload/a", method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        assert answer.status == 200
    eventually(lambda: not artifacts(box))
    assert box.ask("a")["counter"] == 1


def test_without_a_journal_a_model_on_nvme_starts_again_and_others_continue(box: Box) -> None:
    box.has("a", idle={"ram": "1s"})
    box.has("b")
    box.start()
    before = {name: box.ask(name) for name in "ab"}
    on_nvme(box, "a")
    box.end(signal.SIGKILL)
    (box.folder / ".local/state/kybernate/journal").unlink()
    box.start()
    assert box.ask("b")["counter"] == before["b"]["counter"] + 1
    after = box.ask("a")
    assert (after["boot"] != before["a"]["boot"], after["counter"]) == (True, 1)
    eventually(lambda: not artifacts(box))
    assert box.never_two()


def test_what_was_started_without_a_folder_below_ram_is_not_continued_with_one(box: Box) -> None:
    tiers = box.keys.pop("tiers")
    box.has("a")
    box.start("--keep")
    before = box.ask("a")
    assert box.end() == 0
    box.keys["tiers"] = tiers
    box.write()
    refused = subprocess.run(
        box.command, env=box.environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "were started without tiers.nvme" in refused.stderr
    del box.keys["tiers"]
    box.write()
    box.start()
    assert box.ask("a")["counter"] == before["counter"] + 1


def test_a_model_that_ends_on_nvme_leaves_nothing(box: Box) -> None:
    box.has("a", idle={"ram": "1s"})
    box.has("b")
    box.start("--keep")
    box.ask("a"), box.ask("b")
    on_nvme(box, "a")
    del box.models["a"]
    box.write()
    eventually(lambda: len(box.inits()) == 2)
    eventually(lambda: not artifacts(box))
    eventually(lambda: len(BoxFreezer(folders(box.environment)).models()) == 1)
    assert box.end() == 0
    box.start()
    box.ask("b")
    assert box.end() == 0
    assert not box.inits()
    assert not BoxFreezer(folders(box.environment)).models()
