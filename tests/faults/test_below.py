"""kill -9 of agent, CRIU and kyb-init after every journalled step below RAM, with a real tree.

One pod without Kubernetes: a real kyb-init, CRIU, vault, object store (a folder), freezer and
gate, under an agent that is a process of its own. A trip is: parked to the object store (dump,
seal, end, pack, drop), then asked (fetch, restore, wake).
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from images import criu
from kybernate.errors import KybernateError
from kybernate.types import PodUid
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.integration.tiers.room import PORT, Pod
from tests.kit.node.cable import THERE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

TOOLS = ("ip", "unshare", "mount")
LIMIT = 60.0
UID = PodUid("5e1f5e1f-0000-4000-8000-000000000001")


class Lodge:
    """The pod, and its agents one after the other. `told` is what the present one has said."""

    def __init__(self, work: Path, settings: dict[str, Any]) -> None:
        self.pod = Pod(UID, work)
        self.told: list[dict[str, Any]] = []
        self.starts = 0
        self._file = work / "lodge.json"
        orders = {"settings": settings, "uid": UID, "journal": str(work / "journal")}
        self._file.write_text(json.dumps(orders))
        self._agent: subprocess.Popen[str] | None = None
        self._door = Path()

    def agent(self) -> None:
        """The next agent."""
        self.told = []
        command = [sys.executable, "-m", "tests.faults.scenes.lodge", str(self._file)]
        made = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )
        self._agent = made
        threading.Thread(target=self._read, args=(made, self.told), daemon=True).start()
        wait_until(lambda: self.state, LIMIT, "the agent doesn't start")

    @staticmethod
    def _read(made: subprocess.Popen[str], told: list[dict[str, Any]]) -> None:
        assert made.stdout is not None
        with made.stdout:
            told.extend(json.loads(line) for line in made.stdout)

    def container(self) -> None:
        """As the kubelet starts it, for the first time or again."""
        if self.pod.process is not None:
            self.pod.process.wait(LIMIT)
        else:
            # The seat's first record is told before its door.
            wait_until(lambda: any("door" in t for t in self.told), LIMIT, "no door is told")
        self._door = next((Path(t["door"]) for t in self.told if "door" in t), self._door)
        self.starts += 1
        self.pod.start(self._door)

    def tell(self, **command: object) -> None:
        """An order to the agent."""
        assert self._agent is not None
        assert self._agent.stdin is not None
        with suppress(BrokenPipeError):
            self._agent.stdin.write(json.dumps(command) + "\n")
            self._agent.stdin.flush()

    @property
    def state(self) -> str:
        """The seat's, as it was last told."""
        return next((str(t["state"]) for t in reversed(self.told) if "state" in t), "")

    @property
    def in_object_store(self) -> bool:
        """Whether its state is there, and nowhere else."""
        found: dict[str, Any] = next((t for t in reversed(self.told) if "state" in t), {})
        return found.get("state") == "parked-object" and found["copies"] == ["object"]

    def nurse(self) -> None:
        """What supervisor and kubelet do: who is dead is started again."""
        assert self._agent is not None
        if self._agent.poll() is not None:
            self.close_agent()
            self.agent()
        assert self.pod.process is not None
        if self.pod.process.poll() is not None:
            self.container()

    def ask(self) -> tuple[int, str]:
        """Number of the answer, and who gave it; on a connection of its own."""
        end = time.monotonic() + LIMIT
        while True:
            self.nurse()
            link = http.client.HTTPConnection(THERE, PORT, timeout=5)
            try:
                link.request("GET", "/")
                number, _, who = link.getresponse().read().decode().partition(" ")
                return int(number), who
            except (OSError, http.client.HTTPException):  # its process may end in mid-answer
                assert time.monotonic() < end, self.told[-5:]
                time.sleep(0.05)
            finally:
                link.close()

    def see_clean(self) -> None:
        """Until the seat is awake, and no tier has a saved state."""

        def asked() -> bool:
            self.nurse()
            clean = self.clean(0)
            if clean is False:
                self.ask()  # what was asked of the agent that died is still carried out
            return bool(clean)

        wait_until(asked, LIMIT, lambda: f"left over: {self.told[-5:]}")

    def clean(self, since: int) -> bool | None:
        """Whether the seat is awake and no tier has a saved state, as the agent told after so many
        lines. None if it has not yet said so, or the saved state is about to go."""
        self.tell()
        time.sleep(0.1)
        found = next((t for t in reversed(self.told[since:]) if "kept" in t), None)
        if found is None or (found["resting"] and any(found["kept"].values())):
            return None
        return bool(found["resting"])

    def close_agent(self) -> None:
        """The agent ends, and with it the pipes to it."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait(LIMIT)
            assert self._agent.stdin is not None
            with suppress(BrokenPipeError):
                self._agent.stdin.close()

    def close(self) -> None:
        """All of it ends."""
        self.close_agent()
        self.pod.close()


@pytest.fixture
def lodge(tmp_path: Path) -> Iterator[Lodge]:
    enter = REPOSITORY / "build" / "kyb-enter"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing or not enter.exists():
        pytest.skip(f"needs root, build/kyb-enter and {', '.join(missing or TOOLS)}")
    try:
        found = criu.for_this_machine(print)
    except KybernateError as error:
        pytest.skip(f"needs CRIU: {error}")
    words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--dir"]
    subprocess.run([*words, str(tmp_path / "keys")], check=True, cwd=REPOSITORY, timeout=60)
    (tmp_path / "objects").mkdir()
    with tempfile.TemporaryDirectory(prefix="kyl") as short:
        settings = {
            "node": "n1",
            "run_dir": short,
            "state_dir": str(tmp_path / "state"),
            "criu": str(found),
            "kyb_enter": str(enter),
            "artifact_keys": str(tmp_path / "keys"),
            "object_store": str(tmp_path / "objects"),
            "tier_residency_s": 0.0,
            "dump_retry_s": 0.5,
        }
        made = Lodge(tmp_path, settings)
        yield made
        made.close()


@pytest.mark.parametrize("part", ["agent", "criu", "kyb-init"])
def test_killed_after_every_journalled_step_below_ram(
    lodge: Lodge, part: str, figures: list[str]
) -> None:
    lodge.agent()
    lodge.container()
    step, kept = 1, 0
    while True:
        lodge.see_clean()
        number, who = lodge.ask()
        starts = lodge.starts
        struck = _trip(lodge, part, step)
        lodge.tell(kill="", after=0)
        again, now = lodge.ask()
        if part == "agent" or not struck:
            assert (now, lodge.starts) == (who, starts), "the same process counts on"
        if now == who:
            assert again > number
        else:
            # Its own end is the container's; what had not begun when CRIU was killed goes on. The
            # trip itself asks once, in the end.
            assert lodge.starts == starts + 1
            assert again in (1, 2)
        kept += now == who
        lodge.see_clean()
        if not struck:
            break
        step += 1
    figures.append(f"{part} killed after each of {step - 1} steps below RAM, {kept} intact")
    assert step > 10
    assert part == "kyb-init" or kept > step // 2


def _trip(lodge: Lodge, part: str, step: int) -> bool:
    """To the object store, and back on a request; whether the order was carried out."""
    told, before = lodge.told, len(lodge.told)
    lodge.tell(kill=part, after=step)
    lodge.tell(park="object")
    end = time.monotonic() + LIMIT

    def said(word: str) -> bool:
        return any(word in t for t in told[before:])

    while not (lodge.in_object_store or said("killed")):
        assert time.monotonic() < end, told[-5:]
        time.sleep(0.005)
    if not said("killed"):
        lodge.ask()
        # Its last steps come behind the answer.
        wait_until(lambda: said("killed") or lodge.clean(before), LIMIT, lambda: f"{told[-5:]}")
    if said("killed") and part == "criu":
        # Else the one of the next trip is killed.
        wait_until(lambda: said("looked_for"), LIMIT, "CRIU is still looked for")
    return said("killed")
