"""The toy model in a pod with a seat, parked by the agent in each tier and woken, and the limits.

Each round has a pod of its own with other bytes: nothing of the round before could be stored in
their place. The driver copies into huge pages, which are what a host takes back of free memory
(`bench/hostmemory.py` keeps small ones). So the model is parked in RAM and woken once right before,
which has the host give such pages; that first park is `ram_first_there_gbps`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.report import emit, median, say
from bench.saved import tierrig
from bench.saved.packing import directory_bytes
from bench.saved.tierlimits import BASELINE, MIB, SIGNED, UNSIGNED, Times, drop_cache, figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.report import Metrics
    from bench.saved.tierrig import Model, Rig

LAST = {"ram": "park", "nvme": "dump", "object": "pack"}
"""The last step of the way into each tier."""


@dataclass
class Samples:
    """Of one tier: seconds of the agent, of the limit, of the park before, and of each phase."""

    ours: Times = field(default_factory=Times)
    limit: Times = field(default_factory=Times)
    first: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)

    def note(self, way: str, whole: float, steps: Mapping[tuple[str, str], float]) -> None:
        """The steps of one way that were done, and what of the whole they don't account for."""
        rest = whole - sum(seconds for (_, phase), seconds in steps.items() if phase == "all")
        for (step, phase), seconds in {**steps, ("rest", "all"): rest}.items():
            self.phases.setdefault(f"{way}, {step} {phase}", []).append(seconds)


def measure(mib: int, rounds: int, *, as_json: bool) -> None:
    """All tiers and their limits in turn, `rounds` times."""
    found = {tier: Samples() for tier in LAST}
    stored: list[float] = []
    unsigned = Times()
    with tierrig.rig(mib) as rig:
        for number in range(rounds):
            with rig.model(number) as model:
                for tier, samples in found.items():
                    before = directory_bytes(rig.stored)
                    _there(rig, model, tier, samples)
                    stored.append((directory_bytes(rig.stored) - before) / MIB)
                    _back(model, samples)
                    _limit(rig, tier, samples.limit, unsigned)
                    say(f"{tier}: {samples.ours}, limit {samples.limit}")
    metrics: Metrics = {}
    for tier, samples in found.items():
        metrics |= figures(tier, mib * MIB, samples.limit, samples.ours)
        for phase, seconds in samples.phases.items():
            say(f"  {tier:6} {phase:28} {1000 * median(seconds):8.1f} ms")
    both = found["object"].ours.both
    metrics["object_ratio_unsigned"] = (unsigned.both / both, "ratio")
    metrics["ram_first_there_gbps"] = (mib * MIB / median(found["ram"].first) / 1e9, "GB/s")
    metrics["object_mib"] = (median(stored[2::3]), "MiB")
    emit("tiers", metrics, BASELINE, as_json=as_json)


def _there(rig: Rig, model: Model, tier: str, samples: Samples) -> None:
    """Parked there; whatever of it the page cache has is forgotten."""
    seconds, _ = model.verbs.park("ram", LAST["ram"])
    samples.first.append(seconds)
    model.verbs.wake("wake")
    before = model.verbs.steps()
    seconds, _ = model.verbs.park(tier, LAST[tier])
    samples.ours.there.append(seconds)
    samples.note("there", seconds, _since(before, model.verbs.steps()))
    drop_cache(rig.nvme)


def _back(model: Model, samples: Samples) -> None:
    """Woken, and as it was."""
    before = model.verbs.steps()
    seconds, _ = model.verbs.wake("wake")
    samples.ours.back.append(seconds)
    samples.note("back", seconds, _since(before, model.verbs.steps()))
    model.see_intact()


def _since(
    before: Mapping[tuple[str, str], float], now: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    """What was done between."""
    grown = {key: seconds - before.get(key, 0.0) for key, seconds in now.items()}
    return {key: seconds for key, seconds in grown.items() if seconds > 0}


def _limit(rig: Rig, tier: str, limit: Times, unsigned: Times) -> None:
    """What the machine does at best."""
    if tier == "object":
        rig.limits.stored(rig.place, SIGNED, limit)
        rig.limits.stored(rig.place, UNSIGNED, unsigned)
    else:
        folder = rig.nvme if tier == "nvme" else rig.limits.shm
        rig.limits.copied(folder / "plain", limit, cold=tier == "nvme")
