"""Device cgroups: a seat's container can't open its GPUs before it is let to them.

In version 1 the runtime is told to allow no more than to make their nodes, and the agent adds the
rest to the container's own list. In version 2, where only more can be denied, a program of ours on
the pod's cgroup denies them, and goes when the turn comes.
"""

from __future__ import annotations

from pathlib import Path

from .lists import DeviceLists
from .programs import DevicePrograms

__all__ = ["DeviceLists", "DevicePrograms", "device_door"]


def device_door(mount: Path = Path("/sys/fs/cgroup")) -> DeviceLists | DevicePrograms:
    """What this node's cgroups can do. `mount` is where they are mounted."""
    version2 = (mount / "cgroup.controllers").exists()
    return DevicePrograms(mount) if version2 else DeviceLists(mount)
