"""What the harness changes on this machine, and how it is undone.

Every change is written into the cluster's State first; `undo` works from that record alone, also
after a crash in the middle.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError, KybernateError
from tests.cluster.start import state as kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.start.state import State

CGROUPS = Path("/sys/fs/cgroup")
_NETWORKS = Path("/sys/class/net")
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def run(*argv: str, limit: float = 30.0) -> str:
    """Runs a command of the system. Raises KybernateError with what it said."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)
    except FileNotFoundError as error:
        raise KybernateError(
            f"{argv[0]} is missing; see `python -m tests.cluster check`"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise KybernateError(f"`{' '.join(argv)}` didn't end within {limit:.0f} s") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise KybernateError(f"`{' '.join(argv)}` failed: {said}")
    return done.stdout


def mount_tmpfs(state: State, path: Path, size: str = "90%") -> None:
    """A tmpfs that may hold device nodes."""
    path.mkdir(parents=True, exist_ok=True)
    state.will_make(kinds.MOUNT, str(path))
    run("mount", "-t", "tmpfs", "-o", f"mode=755,size={size}", "kyb", str(path))


def make_bridge(state: State, name: str, address: str) -> None:
    """A bridge that carries the node's address, so that the node's traffic stays on the host. Its
    alias is the cluster's folder.

    Raises ConfigError if a network of this host overlaps with the node's, or has its name.
    """
    taken = overlapping(run("ip", "-o", "-4", "address", "show"), address)
    if taken:
        raise ConfigError(
            "subnet", f"{address} overlaps with {taken} of this host; {way_out(taken.split()[-1])}"
        )
    if (_NETWORKS / name).exists():
        raise ConfigError("name", f"this host has a network {name} already; {way_out(name)}")
    forward = _FORWARD.read_text().strip()
    if forward == "0":
        state.will_make(kinds.IP_FORWARD, forward)
    state.will_make(kinds.BRIDGE, name)
    run("ip", "link", "add", name, "type", "bridge")
    run("ip", "link", "set", name, "alias", str(state.file.parent))
    run("ip", "address", "add", address, "dev", name)
    run("ip", "link", "set", name, "up")
    _FORWARD.write_text("1\n")


def overlapping(addresses: str, wanted: str) -> str | None:
    """The first of the host's networks that overlaps; `addresses` is `ip -o -4 address show`."""
    network = ipaddress.IPv4Interface(wanted).network
    for line in addresses.splitlines():
        words = line.split()
        if "inet" in words:
            other = ipaddress.IPv4Interface(words[words.index("inet") + 1]).network
            if network.overlaps(other):
                return f"{other} on {words[1]}"
    return None


def way_out(network: str, networks: Path = _NETWORKS) -> str:
    """What to do about a network of this host that is in the way: another cluster's is named."""
    try:
        folder = (networks / network / "ifalias").read_text().strip()
    except OSError:
        folder = ""
    if not folder:
        return "choose another /16, and another name"
    return (
        f"it is that of the cluster in {folder}: wait until that one has ended, or end it in its "
        "own checkout by `python -m tests.cluster down`"
    )


def make_cgroup(state: State, name: str) -> None:
    """The cgroup in every hierarchy; the kubelet wants its root to exist."""
    state.will_make(kinds.CGROUP, name)
    for root in hierarchies():
        (root / name).mkdir(exist_ok=True)


def hierarchies() -> list[Path]:
    """The mounted cgroup hierarchies: one with version 2, one per controller with version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [
        Path(entry.path) for entry in os.scandir(CGROUPS) if entry.is_dir(follow_symlinks=False)
    ]


def thaw(name: str) -> None:
    """Lets frozen processes of a node run, for a frozen process can't even be killed."""
    for root in hierarchies():
        for folder in _below(root / name):
            for file, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if (folder / file).exists():
                    with suppress(OSError):
                        (folder / file).write_text(word)


def empty_cgroup(name: str) -> None:
    """Removes all below a node's cgroup; nothing may run there any more. Raises OSError."""
    below = {entry.name for root in hierarchies() for entry in (root / name).iterdir()}
    for folder in below:
        if any((root / name / folder).is_dir() for root in hierarchies()):
            _remove_cgroup(f"{name}/{folder}")


def undo(state: State) -> list[str]:
    """Undoes all that the record names, the last made first. Returns what couldn't be undone."""
    left = []
    for kind, value in reversed(state.made):
        if kind not in _UNDO:
            left.append(f"{kind} {value}: made by another version of the harness; remove it")
            continue
        try:
            _UNDO[kind](value)
        except (OSError, KybernateError) as error:
            left.append(f"{kind} {value}: {error}")
    state.made.clear()
    return left


def _unmount(value: str) -> None:
    if os.path.ismount(value):
        run("umount", "-R", "-l", value)


def _remove_bridge(value: str) -> None:
    if Path("/sys/class/net", value).exists():
        run("ip", "link", "delete", value)


def _remove_cgroup(value: str, limit: float = 10.0) -> None:
    deadline = time.monotonic() + limit
    for root in hierarchies():
        for folder in reversed(list(_below(root / value))):
            while True:
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    thaw(value)
                    time.sleep(0.02)


def _restore_forward(value: str) -> None:
    _FORWARD.write_text(f"{value}\n")


def _below(folder: Path) -> Iterator[Path]:
    """The cgroup and all below it, parents first."""
    for path, _, _ in os.walk(folder):
        yield Path(path)


_UNDO = {
    kinds.MOUNT: _unmount,
    kinds.BRIDGE: _remove_bridge,
    kinds.CGROUP: _remove_cgroup,
    kinds.IP_FORWARD: _restore_forward,
}
