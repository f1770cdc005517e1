"""Why an artifact may not be restored into a container: a closed set of reasons. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Self

from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection


class Misfit(StrEnum):
    """A reason: what it means, and what a person can do about it, in a sentence each."""

    told: str
    remedy: str

    def __new__(cls, word: str, told: str, remedy: str) -> Self:
        """A member."""
        one = str.__new__(cls, word)
        one._value_ = word
        one.told, one.remedy = told, remedy
        return one

    POD = (
        "pod",
        "It is another pod's, and nobody has asked for it as such.",
        "Have the pod name it (kyb.ai/restore-from).",
    )
    NAMESPACE = (
        "namespace",
        "It was saved in a namespace that was deleted, and not in the present one of its name.",
        "Start the pod without it.",
    )
    GRANT = (
        "grant",
        "It is another namespace's, and no ArtifactGrant there gives it to the pod's.",
        "Have the owner of that namespace make one.",
    )
    BELIEF = (
        "belief",
        "It is signed by a node, and its files are not those that the registry has recorded.",
        "Continue from another artifact, and see who wrote to the place where it lies.",
    )
    IMAGE = (
        "image",
        "The pod runs another image, or nobody told which one.",
        "Pin the pod's image to the digest that was saved; if none is told, save it again.",
    )
    SPEC = (
        "spec",
        "The pod's container is specified otherwise.",
        "Make it as the saved one: its command, arguments, environment and volumes.",
    )
    KYB_INIT = (
        "kyb-init",
        "It was saved under another build of kyb-init, which its memory maps.",
        "Bring this node's agent to the release of the one that saved it, or that one to this.",
    )
    FILES = (
        "files",
        "Files that its container had changed were not saved with it.",
        "Save it again; until then it fits only the container that it was saved from.",
    )
    ARCHITECTURE = (
        "architecture",
        "The node has another processor architecture.",
        "Have the pod bound to a node like the one that saved it.",
    )
    KERNEL = (
        "kernel",
        "The node runs another version of the kernel.",
        "Have the pod bound to a node with that kernel, or boot this one with it.",
    )
    CRIU = (
        "criu",
        "The node's CRIU is older, or of another major version, and can't read it.",
        "Bring this node's agent to the release that wrote it.",
    )
    GPUS = (
        "gpus",
        "The seat has another number of GPUs, or GPUs of another product.",
        "Ask for a seat like the saved one's.",
    )
    DRIVER = (
        "driver",
        "The node has another version of the driver, or of CUDA.",
        "Have the pod bound to a node with that version, or install it here.",
    )
    RIGHTS = (
        "rights",
        "Its processes may do what the container may not.",
        "Give the container what the saved one had.",
    )


class Against(NamedTuple):
    """What stands against one restore: the reason, and what was found, in a sentence."""

    misfit: Misfit
    found: str

    @property
    def sentence(self) -> str:
        """What was found, and what to do about it."""
        return f"{self.found} {self.misfit.remedy}"


def refusal(against: Collection[Against]) -> RefusedError:
    """The error that tells all of it, and each remedy once."""
    misfits = tuple(dict.fromkeys(one.misfit for one in against))
    found = (
        " ".join([*(one.found for one in against if one.misfit is misfit), misfit.remedy])
        for misfit in misfits
    )
    return RefusedError(" ".join(found), tuple(one.value for one in misfits))
