"""A box of a user without rights, in a folder of its own, with GPUs of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bench.processes import free_port
from kybernate.local.simgpu.folder import install
from kybernate.local.simgpu.spec import parse
from tests.kit.browser import chromium
from tests.simgpu import build, read_log, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
MIB = 1 << 20
PATIENCE = 90.0
_USER = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all")
AS_USER = ("setpriv", *_USER) if os.geteuid() == 0 else ()
"""Before a command: it is run by a user without rights."""
_NEEDS = "import aiohttp, cuda.bindings, orjson, pydantic, pynvml"


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(what: Any, patience: float = PATIENCE) -> Any:
    """What it returns once that is true."""
    until = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < until, f"never came true: {what}"
        time.sleep(0.05)
    return found


def variables() -> dict[str, str]:
    """Of what that user's Python runs with."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_path("purelib")}


def _may_run(one: str) -> bool:
    words = [*AS_USER, "test", "-x", one]
    if subprocess.run(words, check=False).returncode != 0:
        return False
    words = [*AS_USER, one, "-c", _NEEDS]
    done = subprocess.run(words, env=variables(), capture_output=True, check=False, cwd=ROOT)
    return done.returncode == 0


@functools.cache
def python() -> str:
    """A Python that the user may run, with the packages of this one."""
    others = (
        f"{folder}/python3.{sys.version_info[1]}" for folder in ("/usr/local/bin", "/usr/bin")
    )
    found = [one for one in (sys.executable, *others) if _may_run(one)]
    if not found:
        pytest.skip(f"user {NOBODY} can run no Python of this version")
    return found[0]


class Box:
    """`kybernate serve` with its file, started and ended as the test likes."""

    def __init__(
        self, folder: Path, gpus: Path, libraries: Path, user: tuple[str, ...] = AS_USER
    ) -> None:
        self.folder, self.gpus, self.user = folder, gpus, user
        self.port, self.first = free_port(), free_port(16)
        self.file = folder / "models.yaml"
        self.process: subprocess.Popen[bytes] | None = None
        self.models: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, Any] = {}
        self.environment = {
            **variables(),
            "HOME": str(folder),
            "SIMGPU_DIR": str(gpus),
            "LD_LIBRARY_PATH": str(libraries),
        }

    def has(self, name: str, *, size: int = 40, options: str = "", **keys: Any) -> None:
        """The file has this model from the next `write` on; `size` in MiB."""
        toy = f"{python()} -m tests.workloads.toy_server --host 127.0.0.1 --model {name}"
        toy = f"{toy} --port ${{PORT}} --bytes {size}MiB {options}"
        self.models[name] = {"cmd": toy, "vram": f"{size}MiB", "gpus": 1, **keys}

    def write(self) -> None:
        fresh = self.file.with_name("fresh.yaml")
        listen = f"127.0.0.1:{self.port}"
        whole = {"listen": listen, "startPort": self.first, **self.keys, "models": self.models}
        fresh.write_text(yaml.safe_dump(whole))
        fresh.rename(self.file)

    @property
    def command(self) -> tuple[str, ...]:
        return (*self.user, python(), "-m", "kybernate.cli", "serve", str(self.file))

    def start(self, *arguments: str) -> None:
        if not self.file.exists():
            self.write()
        words = [*self.command, *arguments]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                words, cwd=ROOT, env=self.environment, stdout=log, stderr=log
            )
        eventually(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        with contextlib.suppress(OSError):
            return self.get("/health") is not None
        return False

    def get(self, path: str) -> bytes:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return bytes(answer.read())

    def ask(self, model: str) -> dict[str, Any]:
        """What the model says of itself with its answer."""
        body = json.dumps({"model": model, "messages": []}).encode()
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body, kind)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
                told: dict[str, Any] = json.load(answer)["kyb"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error.read().decode()}\n{self.log}") from error
        assert told["checksum"] == told["expected"]
        return told

    def end(self, signum: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        status = self.process.wait(PATIENCE)
        self.process = None
        return status

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def never_two(self) -> bool:
        """Whether at no moment two models had memory of one GPU, by the driver's own log."""
        return not violations(read_log(self.gpus))

    def inits(self) -> list[int]:
        """The kyb-inits of this box."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if words[1:2] == [b"--local"] and words[2].startswith(bytes(self.folder)):
                        found.append(int(entry.name))
        return found

    def clear(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for pid in self.inits():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self.inits())


@pytest.fixture(scope="session")
def libraries() -> Iterator[Path]:
    # Not in pytest's own folder, which each run of it closes to other users.
    folder = Path(tempfile.mkdtemp(prefix="kyb-simgpu-"))
    folder.chmod(0o755)
    yield build(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One that shows pages. A machine that can't have it fails: a skipped page is an untested one.
    Not for all of a run: Playwright's loop would be that of later tests, too."""
    with chromium() as started:
        yield started


@pytest.fixture
def box(libraries: Path) -> Iterator[Box]:
    """One GPU of 64 MiB."""
    yield from boxes(libraries, 1)


@pytest.fixture
def wide_box(libraries: Path) -> Iterator[Box]:
    """Two GPUs of 64 MiB."""
    yield from boxes(libraries, 2)


def boxes(
    libraries: Path, count: int, user: tuple[str, ...] = AS_USER, **driver: str
) -> Iterator[Box]:
    """One with so many GPUs, and cleared away afterwards. `user`: whose it is, as words before its
    command; `driver`: its versions."""
    folder = Path(tempfile.mkdtemp(prefix="kyb-box-"))
    gpus = Path(tempfile.mkdtemp(prefix="kyb-gpus-", dir="/dev/shm"))
    row = {"product": "toy", "memory": "64MiB", "count": count}
    spec = parse({"name": "box", "gpus": [row], "open": True, **driver})
    install(spec, gpus, libraries)
    if os.geteuid() == 0 and user:
        os.chown(folder, NOBODY, NOBODY)
    made = Box(folder, gpus, libraries, user)
    try:
        yield made
    finally:
        made.clear()
        shutil.rmtree(folder)
        shutil.rmtree(gpus)


def ask_in_vain(box: Box) -> None:
    with contextlib.suppress(OSError, AssertionError):
        box.ask("a")
