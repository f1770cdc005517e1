"""Who calls: the names in the client's certificate, and which role they give."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kybernate import keys

if TYPE_CHECKING:
    from collections.abc import Mapping


class Role(StrEnum):
    """What a caller is to the registry."""

    AGENT = "agent"
    CONTROLLER = "controller"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller; `node` is an agent's, empty for others. `name` is for messages."""

    role: Role
    name: str
    node: str = ""


_NAMED = {keys.CN_CONTROLLER: Role.CONTROLLER, keys.CN_PROXY: Role.PROXY}


def read_caller(certificate: Mapping[str, Any]) -> Caller | str:
    """The caller whose certificate this is, as `getpeercert` gives it; or why it may not call."""
    names = [
        value
        for part in certificate.get("subject", ())
        for kind, value in part
        if kind == "commonName"
    ]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    nodes = [node for name in others if (node := keys.agent_node(name))]
    if len(names) == 1 and names[0] in _NAMED and not nodes:
        return Caller(_NAMED[names[0]], names[0])
    if len(nodes) == 1 and not set(names) & set(_NAMED):
        return Caller(Role.AGENT, f"the agent of node {nodes[0]}", nodes[0])
    found = ", ".join([*names, *others]) or "no name"
    return (
        f"only agents, {keys.CN_CONTROLLER} and {keys.CN_PROXY} may call; your certificate names "
        f"{found}"
    )
