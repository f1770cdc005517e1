"""Whether a machine and a pod are what an artifact needs. Pure.

CUDA memory goes back into the same kind of GPU under the same driver; CRIU puts back file
mappings of the very same files, and registers of the same architecture.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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


def mismatches(facts: Facts, target: Target) -> tuple[str, ...]:
    """Why the artifact can't be restored there, as sentences; empty if it can."""
    return (*_workload(facts, target), *machine_mismatches(facts, target))


def machine_of(facts: Facts) -> Mapping[str, str | int]:
    """What `machine_mismatches` compares of them; `Target` takes it."""
    return {name: getattr(facts, name) for name in _COMPARED}


def machine_mismatches(facts: Facts | Target, target: Target) -> tuple[str, ...]:
    """The same of what a node may get another of while a pod is parked on it."""
    return (*_machine(facts, target), *_gpus(facts, target))


def _workload(facts: Facts, target: Target) -> Iterator[str]:
    if UNKNOWN in (facts.image_digest, target.image_digest):
        yield (
            "The container runtime did not tell the image's digest when it was saved, or now: save "
            "it again, or ask again."
        )
    elif facts.image_digest != target.image_digest:
        yield (
            f"It was saved from image {facts.image_digest}, the pod runs {target.image_digest}; "
            "pin the pod's image to that digest."
        )
    if UNKNOWN in (facts.spec_hash, target.spec_hash) or facts.spec_hash != target.spec_hash:
        yield "The pod's container is specified otherwise than the one that was saved."
    if facts.kyb_init and target.kyb_init and facts.kyb_init != target.kyb_init:
        yield (
            "It was saved under another build of kyb-init, which its memory maps: bring this "
            "node's agent to the release of the one that saved it, or that one to this."
        )
    if facts.files_missing:
        yield facts.files_missing


def _machine(facts: Facts | Target, target: Target) -> Iterator[str]:
    if facts.architecture != target.architecture:
        yield f"It was saved on {facts.architecture}, this node is {target.architecture}."
    if _version(facts.kernel)[:2] != _version(target.kernel)[:2]:
        yield f"It was saved under kernel {facts.kernel}, this node runs {target.kernel}."
    saved, here = _version(facts.criu), _version(target.criu)
    if saved[:1] != here[:1] or here < saved:
        yield f"It was saved by CRIU {facts.criu}; this node's {target.criu} can't read it."


def _gpus(facts: Facts | Target, target: Target) -> Iterator[str]:
    if facts.gpu_count != target.gpu_count:
        yield f"It was saved with {facts.gpu_count} GPUs, the seat has {target.gpu_count}."
    if facts.gpu_count == 0:
        return
    for word, saved, here in (
        ("GPU", facts.gpu_product, target.gpu_product),
        ("driver", facts.driver, target.driver),
        ("CUDA", facts.cuda, target.cuda),
    ):
        if saved != here:
            yield f"It was saved on {word} {saved or 'unknown'}, this node has {here or 'unknown'}."


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBERS.findall(text)[:3])
