"""What the agent could not give back to a process: CRIU has no more rights than the agent has.

A dump would go well, and the restore fail for good: so it is told before the dump.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.adapters.kernel import smallfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
    *("SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW"),
    *("IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT"),
    *("SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD"),
    *("LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG"),
    *("WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)
"""capabilities(7), by their numbers in linux/capability.h."""

_BOUNDS = "CapBnd"


def lacking(theirs: Mapping[str, str], own: Mapping[str, str]) -> Iterator[str]:
    """What a process has and the agent can't give, as ends of sentences: both as `read`."""
    # The bounding set holds all that a process may come to have.
    more = int(theirs.get(_BOUNDS, "0"), 16) & ~int(own.get(_BOUNDS, "0"), 16)
    if more:
        names = [_name(number) for number in range(more.bit_length()) if more >> number & 1]
        yield (
            f"may have {', '.join(names)}, which the agent could not give back: give the agent the "
            "same capabilities, or take them from the container."
        )
    if own.get("NoNewPrivs") == "1" and theirs.get("NoNewPrivs") == "0":
        yield (
            "may gain rights, and would not any more: the agent itself may not; set "
            "allowPrivilegeEscalation for it."
        )
    if own.get("Seccomp", "0") != "0" and theirs.get("Seccomp") == "0":
        yield "would come back under the agent's seccomp filter: run the agent without one."


def read(path: str) -> Mapping[str, str]:
    """A process's status file. Raises OSError."""
    lines = (line.partition(":") for line in smallfile.read(path).splitlines())
    return {name: value.strip() for name, _, value in lines}


def _name(number: int) -> str:
    return _NAMES[number] if number < len(_NAMES) else f"number {number}"
