"""What the page shows of a box beyond its models' seats: GPUs, memory, pins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.page.shape import Extra, Lane, Scene

if TYPE_CHECKING:
    from kybernate.local.box import Box

ACTS = ("park", "wake", "pin", "unload")


def scene(box: Box) -> Scene:
    """As the box is now. A GPU is a lane, a model's name its full name."""
    lanes = tuple(
        Lane(gpu.uuid, f"GPU {gpu.index}", "", gpu.product, gpu.memory, gpu.others)
        for gpu in box.gpus()
    )
    extras = {row.name: Extra(row.gpus, row.size, row.wake_s, row.pinned) for row in box.models()}
    return Scene("this box", ACTS, logs=True, lanes=lanes, extras=extras)
