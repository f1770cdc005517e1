"""`--simulate`: a box whose GPUs are the simulated driver's, for who has none.

The driver's libraries are found by the LD_LIBRARY_PATH that a process starts with, so this process
starts itself again with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError, RefusedError
from kybernate.local.folders import native
from kybernate.local.processes import BoxProcs
from kybernate.local.simgpu import layout
from kybernate.local.simgpu.folder import compile_node, install
from kybernate.local.simgpu.spec import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.local.folders import Folders
    from kybernate.local.simgpu.spec import NodeSpec

_SHARED = Path("/dev/shm")  # noqa: S108 - the folder in it is this user's
_MEMORY = "512MiB"


def describe(gpus: int) -> NodeSpec:
    """So many small GPUs, all of whose bytes are real: so are those that a park puts into RAM."""
    row = {"product": "simulated GPU", "memory": _MEMORY, "count": gpus}
    return parse({"name": "box", "gpus": [row], "open": True})


def environment(gpus: int, given: Mapping[str, str], own: Folders) -> dict[str, str]:
    """The variables with which processes see these GPUs. Their folder is made if it isn't there;
    one of the same GPUs is left as it is: parked models may use it. Raises ConfigError, and
    RefusedError if models use other GPUs than these."""
    libraries = native("simgpu")
    root = folder_of(own.state)
    _have_own(root.parent)
    spec = describe(gpus)
    if not _is_there(root, spec):
        if BoxProcs(own.seats).inits():
            said = "models of this box use another number of simulated GPUs: end it before"
            raise RefusedError(f"{said} --simulate={gpus}, without --keep")
        install(spec, root, libraries)
    path = ":".join(filter(None, (str(libraries), given.get("LD_LIBRARY_PATH", ""))))
    return {**given, "SIMGPU_DIR": str(root), "LD_LIBRARY_PATH": path}


def folder_of(run: Path) -> Path:
    """Where the GPUs of the box with this folder lie, below one that only this user may enter."""
    shared = _SHARED if os.access(_SHARED, os.W_OK) else run
    return shared / f"kybernate-{os.geteuid()}" / hashlib.sha256(os.fsencode(run)).hexdigest()[:16]


def forget(run: Path) -> None:
    """Give the memory of this box's GPUs back, where they are the ones that this process uses."""
    root = folder_of(run)
    if os.environ.get("SIMGPU_DIR") != str(root):
        return
    shutil.rmtree(root, ignore_errors=True)
    with contextlib.suppress(OSError):
        root.parent.rmdir()  # if no other box of this user has its GPUs there


def start_again(gpus: int, own: Folders) -> None:
    """Come back here with these GPUs; returns at once if that has been done."""
    if "SIMGPU_DIR" in os.environ:
        return
    os.execve(sys.executable, sys.orig_argv, environment(gpus, os.environ, own))  # noqa: S606


def _have_own(folder: Path) -> None:
    # Anybody may lay something there in advance, a link as well.
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(str(folder), "is not this user's own folder; remove it")
    folder.chmod(0o700)


def _is_there(root: Path, spec: NodeSpec) -> bool:
    try:
        return (root / layout.NODE_FILE).read_bytes() == compile_node(spec)
    except OSError:
        return False
