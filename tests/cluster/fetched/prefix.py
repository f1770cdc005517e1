"""The tools that nodes need: what Debian has, unpacked into the cache, and what we build."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from images import debs
from kybernate.errors import KybernateError
from tests.cluster.fetched import binaries, images

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.layout import Progress

RUNTIME = debs.DebSet(
    "containerd",
    "forky",
    (("containerd", "2.1.9+ds1-5"), ("containernetworking-plugins", "1.9.1+ds1-1")),
)
RUNC = debs.DebSet("runc", "bookworm", (("runc", "1.1.5+ds1-1+deb12u1"),))
KNOWN = {"containerd": "2.1.9", "runc": "1.1.5", "containernetworking-plugins": "1.9.1"}


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Where the tools of a node are."""

    binaries: binaries.Binaries
    containerd: Path
    ctr: Path
    runc: Path
    cni: Path
    pause: Path

    @property
    def path(self) -> str:
        """PATH of the node's daemons: containerd looks for its shim there."""
        folders = [str(self.containerd.parent), str(self.runc.parent)]
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return ":".join([*folders, os.environ.get("PATH", system), system])


def ensure(progress: Progress) -> Toolbox:
    """Everything that a node needs. Raises KybernateError with what to do."""
    runtime = debs.unpack(RUNTIME, progress)
    runc = debs.unpack(RUNC, progress)
    tools = Toolbox(
        binaries=binaries.ensure(binaries.ALL, progress),
        containerd=runtime.folder / "usr/bin/containerd",
        ctr=runtime.folder / "usr/bin/ctr",
        runc=runc.folder / "usr/sbin/runc",
        cni=runtime.folder / "usr/lib/cni",
        pause=images.pause_binary(progress),
    )
    _check(tools.containerd, "--version", runtime.describe("containerd"), "containerd")
    _check(tools.runc, "--version", runc.describe("runc"), "runc")
    plugins = "containernetworking-plugins"
    _check(tools.cni / "bridge", "--version", runtime.describe(plugins), plugins)
    return tools


def cached() -> bool:
    """True if `ensure` needs no network."""
    return not binaries.to_build(binaries.ALL) and all(debs.cached(one) for one in (RUNTIME, RUNC))


def _check(path: Path, flag: str, what: str, name: str) -> None:
    """Raises KybernateError unless the program runs on this host's libraries."""
    try:
        run = subprocess.run(
            [str(path), flag], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError as error:
        raise KybernateError(
            f"{what} can't be run: {error}; version {KNOWN[name]} is known to work"
        ) from error
    if run.returncode:
        said = " / ".join(run.stderr.strip().splitlines()[:2])
        raise KybernateError(
            f"{what} of the Debian mirror doesn't run on this host ({said}); "
            f"version {KNOWN[name]} is known to work: use a mirror or snapshot that has it"
        )
