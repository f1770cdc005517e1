"""Whether a machine and a pod are what an artifact needs. Pure.

CUDA memory goes back into the same kind of GPU under the same driver; CRIU puts back file
mappings of the very same files, and registers of the same architecture.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kybernate.core.artifacts.misfits import Against, Misfit
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.core.artifacts.manifest import Facts

UNKNOWN = "unknown"
"""An image digest or container specification that nobody told. It equals no other."""

_COMPARED = ("kernel", "criu", "architecture", "gpu_product", "gpu_count", "driver", "cuda")
_NUMBERS = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Target:
    """Where an artifact is to be restored; the fields are those of `Facts`."""

    image_digest: str
    spec_hash: str
    kernel: str
    criu: str
    architecture: str
    gpu_product: str = ""
    gpu_count: int = 0
    driver: str = ""
    cuda: str = ""
    kyb_init: str = ""


def mismatches(facts: Facts, target: Target) -> tuple[Against, ...]:
    """Why the artifact can't be restored there; empty if it can."""
    return (*_workload(facts, target), *machine_mismatches(facts, target))


def machine_of(facts: Facts) -> Mapping[str, str | int]:
    """What `machine_mismatches` compares of them; `Target` takes it."""
    return {name: getattr(facts, name) for name in _COMPARED}


def machine_mismatches(facts: Facts | Target, target: Target) -> tuple[Against, ...]:
    """The same of what a node may get another of while a pod is parked on it."""
    return (*_machine(facts, target), *_gpus(facts, target))


def _workload(facts: Facts, target: Target) -> Iterator[Against]:
    if UNKNOWN in (facts.image_digest, target.image_digest):
        yield Against(
            Misfit.IMAGE,
            "The container runtime did not tell the image's digest, at the save or now.",
        )
    elif facts.image_digest != target.image_digest:
        yield Against(
            Misfit.IMAGE,
            f"It was saved from image {facts.image_digest}, the pod runs {target.image_digest}.",
        )
    if UNKNOWN in (facts.spec_hash, target.spec_hash) or facts.spec_hash != target.spec_hash:
        yield Against(Misfit.SPEC, Misfit.SPEC.told)
    if facts.kyb_init and target.kyb_init and facts.kyb_init != target.kyb_init:
        yield Against(Misfit.KYB_INIT, Misfit.KYB_INIT.told)
    if facts.files_missing:
        yield Against(Misfit.FILES, facts.files_missing)


def _machine(facts: Facts | Target, target: Target) -> Iterator[Against]:
    if facts.architecture != target.architecture:
        seen = f"It was saved on {facts.architecture}, this node is {target.architecture}."
        yield Against(Misfit.ARCHITECTURE, seen)
    if _version(facts.kernel)[:2] != _version(target.kernel)[:2]:
        seen = f"It was saved under kernel {facts.kernel}, this node runs {target.kernel}."
        yield Against(Misfit.KERNEL, seen)
    saved, here = _version(facts.criu), _version(target.criu)
    if saved[:1] != here[:1] or here < saved:
        seen = f"It was saved by CRIU {facts.criu}; this node's {target.criu} can't read it."
        yield Against(Misfit.CRIU, seen)


def _gpus(facts: Facts | Target, target: Target) -> Iterator[Against]:
    if facts.gpu_count != target.gpu_count:
        seen = f"It was saved with {facts.gpu_count} GPUs, the seat has {target.gpu_count}."
        yield Against(Misfit.GPUS, seen)
    if facts.gpu_count == 0:
        return
    for misfit, word, saved, here in (
        (Misfit.GPUS, "GPU", facts.gpu_product, target.gpu_product),
        (Misfit.DRIVER, "driver", facts.driver, target.driver),
        (Misfit.DRIVER, "CUDA", facts.cuda, target.cuda),
    ):
        if saved != here:
            yield Against(
                misfit,
                f"It was saved on {word} {saved or 'unknown'}, this node has {here or 'unknown'}.",
            )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBERS.findall(text)[:3])
