"""What this process may do, and what it takes to do more."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kybernate.api.models import Tiers

CRIU = Path("/usr/libexec/kybernate/criu")
"""Where it is looked for if the file names none: its place in the agent's image, too."""
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_SYS_PTRACE = 19
_PACKAGES = ("blake3", "obstore", "zstandard")
"""Of the extra `checkpoint`: parking in RAM takes none of them."""


def refusal(yama: Path = _YAMA, status: Path = Path("/proc/self/status")) -> str | None:
    """Why no model can be parked by this process, as a sentence, or None.

    The driver parks a process through its memory in /proc. The kernel lets a user's own processes
    there; its module Yama lets it only where the process itself allows that (1), as models'
    commands do here, or only with CAP_SYS_PTRACE (2), or nobody (3).
    """
    try:
        scope = int(yama.read_text())
    except (OSError, ValueError):
        return None  # a kernel without Yama
    if scope < 2 or (scope == 2 and may(_SYS_PTRACE, status)):
        return None
    if scope == 2:
        return (
            "kernel.yama.ptrace_scope is 2: only processes with CAP_SYS_PTRACE may park others; "
            "set it to 1 (sysctl kernel.yama.ptrace_scope=1), or start kybernate serve with that "
            "capability, as by systemd's AmbientCapabilities=CAP_SYS_PTRACE"
        )
    return (
        "kernel.yama.ptrace_scope is 3: nobody may park another process until this machine starts "
        "with a lower one; set it to 1 in /etc/sysctl.d and start the machine again"
    )


def stays_in_ram(tiers: Tiers, user: int | None = None) -> str | None:
    """Why models don't leave RAM though the file asks for it, as a sentence, or None. `user`: its
    number, by default this process's."""
    stays = "parked models stay in RAM"
    if tiers.nvme is None:
        return None
    if (os.geteuid() if user is None else user) != 0:
        return (
            f"tiers.nvme: {stays}: to write them to NVMe takes root; start kybernate serve as "
            "root, and where a model is to run as somebody else, begin its cmd with setpriv "
            "--reuid=USER --regid=GROUP --init-groups"
        )
    if not os.access(criu_of(tiers), os.X_OK):
        return (
            f"tiers.criu: {stays}: {criu_of(tiers)} is no program; name Kybernate's CRIU here, "
            "which make criu builds"
        )
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        return (
            f"tiers.nvme: {stays}: {' and '.join(missing)} can't be imported; install "
            "'kybernate[checkpoint]'"
        )
    return None


def criu_of(tiers: Tiers) -> Path:
    """The CRIU that the file means."""
    return Path(tiers.criu) if tiers.criu else CRIU


def may(capability: int, status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has the capability in effect."""
    for line in status.read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False
