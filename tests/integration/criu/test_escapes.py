"""A container's files stay data: CRIU, with the node's rights inside it, runs and obeys none.

Each trap would run with all capabilities if CRIU looked for it as a distribution's does.
"""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.container.inits import KernelInits
from kybernate.adapters.criu import is_static, running
from kybernate.adapters.criu.container import Container
from kybernate.lib.deadline import Deadline
from tests.kit.node.parking import LIMIT
from tests.kit.node.programs import nginx, serves

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.node.parking import Seat

pytestmark = pytest.mark.integration

LOADED = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void sprung(void)
{
	int fd = open("/tmp/sprung", O_WRONLY | O_CREAT | O_APPEND, 0666);
	write(fd, "%s\\n", sizeof("%s"));
	close(fd);
}
"""
TELLING = """
#include <stdio.h>
extern char **environ;
int main(void)
{
	for (char **one = environ; *one; one++)
		puts(*one);
}
"""
SCRIPT = "#!/bin/busybox sh\n/bin/busybox echo script $0 >> /tmp/sprung\n"
NAMES = ("sh", "ip", "iptables", "iptables-restore", "ip6tables-restore", "nft", "tar", "criu")


@pytest.fixture
def trapped(seat: Callable[..., Seat], tmp_path: Path) -> Seat:
    """nginx in a container full of traps."""
    one = nginx(seat)
    root = one.container.path("/")
    for name in ("preload", "plugin"):
        compile_trap(tmp_path, name)
    plant(root / "usr/lib/trap.so", (tmp_path / "preload.so").read_bytes())
    plant(root / "usr/lib/criu/trap.so", (tmp_path / "plugin.so").read_bytes())
    plant(root / "usr/local/lib/criu/trap.so", (tmp_path / "plugin.so").read_bytes())
    plant(root / "etc/criu/default.conf", b"action-script /usr/bin/trap\nlibdir /usr/lib/criu\n")
    plant(root / "root/.criu/default.conf", b"action-script /usr/bin/trap\n")
    plant(root / "usr/bin/trap", SCRIPT.encode())
    plant(root / "run/criu.kdat", os.urandom(4096))
    plant(root / "etc/nsswitch.conf", b"passwd: trap\nhosts: trap\nprotocols: trap\n")
    plant(root / "usr/lib/libnss_trap.so.2", (tmp_path / "plugin.so").read_bytes())
    for folder in ("nonexistent", "none", "usr/local/bin", "usr/local/sbin", "sbin"):
        for name in NAMES:
            plant(root / folder / name, SCRIPT.encode())
    # Last: from here on every program of the container's own is trapped too.
    plant(root / "etc/ld.so.preload", b"/usr/lib/trap.so\n")
    return one


def compile_trap(folder: Path, name: str) -> None:
    source = folder / f"{name}.c"
    source.write_text(LOADED % (name, name))
    argv = ["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / f"{name}.so"), str(source)]
    subprocess.run(argv, check=True)


def plant(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)


def test_nothing_of_the_containers_is_run(trapped: Seat) -> None:
    sprung = trapped.container.path("/tmp/sprung")
    assert trapped.container.inside("/usr/bin/trap") == ""
    assert "script" in sprung.read_text(), "the traps themselves must work"
    trapped.container.inside("/usr/bin/python3", "-c", "pass")
    assert "preload" in sprung.read_text(), "the traps themselves must work"
    sprung.unlink()
    for lazy in (False, True):
        trapped.park()
        trapped.resume(lazy=lazy)
        trapped.pages_done()
        assert serves(trapped)
    assert not sprung.exists(), sprung.read_text()


def test_the_cache_of_features_is_ours(trapped: Seat) -> None:
    poisoned = trapped.container.path("/run/criu.kdat").read_bytes()
    trapped.park()
    trapped.resume()
    assert trapped.container.path("/run/criu.kdat").read_bytes() == poisoned
    ours = trapped.node.tools.cache
    assert (ours / "criu.kdat").exists()
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700


def test_criu_is_static_and_gets_no_environment(trapped: Seat, tmp_path: Path) -> None:
    """Told by a program in CRIU's place: CRIU itself may be gone before anybody looks at it."""
    assert is_static(trapped.node.tools.criu)
    assert is_static(trapped.node.tools.enter)
    (tmp_path / "telling.c").write_text(TELLING)
    program = tmp_path / "telling"
    argv = ["gcc", "-static", "-o", str(program), str(tmp_path / "telling.c")]
    subprocess.run(argv, check=True)
    trapped.renew()
    said = trapped.run(told_by(trapped, program))
    assert said == b"PATH=/proc/none\n"


async def told_by(seat: Seat, program: Path) -> bytes:
    tools = replace(seat.node.tools, criu=program)
    inits, work = KernelInits(tools.enter.parent), seat.node.work / "criu"
    with Container.opened(inits, seat.container.init, seat.handle, work) as container:
        process = await running.start(tools, container, running.Run([], seat.images, "tells.log"))
        assert await running.ended(process, Deadline(LIMIT), "telling") == 0
        return (container.work / "said").read_bytes()
