"""How the driver's checkpoint calls answer, one by one, and what their start costs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.gpu.driver import ByBindings, RefusedByDriverError, parker
from tests.gpu.held import REPOSITORY, held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.here import Answer, Here

_SMALL = "--bytes=4194304"
_NOBODY = 65534
_INIT = (
    "import time; from cuda.bindings import driver; t = time.monotonic(); "
    "code = int(driver.cuInit(0)[0]); print(time.monotonic() - t, code)"
)
_LOOK = (
    "import subprocess, sys; words = [sys.executable, '-c', 'import tests.gpu.driver']; "
    "sys.exit(subprocess.run(words).returncode)"
)
_AS_USER = """
from tests.gpu.driver import ByBindings
from tests.gpu.held import held
import sys
with held(sys.argv[1], "hold", "--bytes=4194304") as one:
    bare, before = ByBindings(), one.answer()
    bare.park(one.pid)
    bare.wake(one.pid)
    print("equal" if one.answer() == before else "another answer")
"""


def answers(here: Here) -> Iterator[Answer]:
    """A small process is enough."""
    bare = ByBindings()
    with held(here.uuid, "hold", _SMALL) as one:
        yield ("calls.order", *_refused(bare.checkpoint, one.pid, bare))
        yield ("calls.states", *_states(bare, one.pid))
        yield ("calls.of_thread", *_of_thread(bare, one.pid))
    yield ("calls.without_cuda", *_without_cuda(bare))
    words = [sys.executable, "-c", _INIT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    seconds = float(done.stdout.split()[0]) if done.returncode == 0 else None
    yield "calls.init_s", seconds, done.stderr[-200:] or "while another process has cuInit'ed"
    began = time.monotonic()
    with parker():
        took = time.monotonic() - began
    yield "calls.helper_s", took, "with the import of the binding; an agent's later seats have it"
    yield ("calls.same_user", *_same_user(here.uuid))


def _refused(call: object, pid: int, bare: ByBindings) -> tuple[bool | None, str]:
    assert callable(call)
    try:
        call(pid)
    except RefusedByDriverError as error:
        return error.code == 401, str(error)
    bare.wake(pid)
    return False, "the driver checkpoints a process that nobody has locked"


def _states(bare: ByBindings, pid: int) -> tuple[bool, str]:
    seen = [bare.state(pid)]
    for step in (bare.lock, bare.checkpoint, bare.restore, bare.unlock):
        step(pid)
        seen.append(bare.state(pid))
    return seen == [0, 1, 2, 1, 0], f"the states were {seen}"


def _of_thread(bare: ByBindings, pid: int) -> tuple[bool | None, str]:
    threads = [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
    if not threads:
        return None, "the process has one thread"
    try:
        return True, f"state {bare.state(threads[0])} by the number of a thread"
    except RefusedByDriverError as error:
        return False, str(error)


def _without_cuda(bare: ByBindings) -> tuple[bool, str]:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            return False, f"the driver says state {bare.state(sleeper.pid)} of sleep(1)"
        except RefusedByDriverError as error:
            return error.code in (1, 3, 201), str(error)
        finally:
            sleeper.kill()


def _same_user(uuid: str) -> tuple[bool | None, str]:
    """Local mode needs no root: target and caller are processes of a user without rights."""
    found = _as_user() if os.geteuid() == 0 else ([sys.executable], {})
    if found is None:
        return (
            None,
            f"this can't become user {_NOBODY}, or that can't run this Python or read {REPOSITORY}",
        )
    words, more = found
    done = _ran([*words, "-c", _AS_USER, uuid], more)
    said = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[-1]
    return said == "equal", f"parked and woken by the same user: {said}"


def _as_user() -> tuple[list[str], dict[str, str]] | None:
    """What runs a Python with these packages as a user without rights."""
    user = (f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--inh-caps=-all")
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), sysconfig.get_path("purelib")])
    name = f"python3.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/local/bin/{name}", f"/usr/bin/{name}"):
        words = ["setpriv", *user, python]
        with suppress(OSError):
            # Its first command still has root's rights to read; what that starts has not.
            if _ran([*words, "-c", _LOOK], {"PYTHONPATH": path}).returncode == 0:
                return words, {"PYTHONPATH": path}
    return None


def _ran(words: list[str], more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=REPOSITORY,
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
