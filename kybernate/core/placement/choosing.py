"""Which policy a pod is placed by: its own, else its namespace's, else its profile's, else the
extender's. Pure.

A profile is one of the kube-scheduler's, which a pod names with `schedulerName`.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.core.placement.policies import POLICIES, Weights
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Choosing:
    """The cluster's rule: policies by namespace and by `schedulerName`."""

    namespaces: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, str] = field(default_factory=dict)

    def name(self, namespace: str, profile: str, annotation: str = "") -> str:
        """The name of the pod's policy, empty for the extender's.

        Raises ConfigError if the annotation names none that there is.
        """
        if annotation:
            return known(annotation, keys.POLICY)
        return self.namespaces.get(namespace) or self.profiles.get(profile, "")


def parse_policies(text: str, field: str) -> dict[str, str]:
    """What `NAME=POLICY,NAME=POLICY` says. Raises ConfigError, naming `field`."""
    found = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, policy = (one.strip() for one in part.partition("="))
        if not (name and equals) or name in found:
            why = "is there twice" if name in found else "is no NAME=POLICY"
            raise ConfigError(field, f"{part!r} {why}; write it as team-a=spread,team-b=fgd")
        found[name] = known(policy, field)
    return found


def parse_weights(text: str, field: str) -> Weights:
    """What `40,30,20,10` says. Raises ConfigError, naming `field`."""
    words = [one.strip() for one in text.split(",")]
    if (
        len(words) != len(Weights._fields)
        or not all(map(_is_number, words))
        or not any(map(int, words))
    ):
        order = ", ".join(Weights._fields)
        why = f"{text!r} is not {len(Weights._fields)} whole numbers of 0 to 1000, not all 0"
        raise ConfigError(field, f"{why}; write those of {order}, as 40,30,20,10")
    return Weights(*map(int, words))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 4 and int(word) <= 1000


def known(name: str, field: str) -> str:
    """The name, if it is a policy's. Raises ConfigError, naming `field`."""
    if name not in POLICIES:
        names = ", ".join(sorted(POLICIES))
        raise ConfigError(field, f"there is no policy {name!r}; write one of {names}")
    return name
