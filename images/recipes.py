"""What each image holds and runs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import wheels
from .cache import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = "65532:65532"
ROOT = "0:0"
CODE = "usr/lib/kybernate"
TOOLS = "usr/libexec/kybernate"
KYB_INIT = f"{TOOLS}/kyb-init"
KYB_ENTER = f"{TOOLS}/kyb-enter"
KYB_RUNTIME = f"{TOOLS}/kyb-runtime"
CRIU = f"{TOOLS}/criu"

ENVIRONMENT = (
    "PATH=/usr/local/bin:/usr/bin:/bin",
    f"PYTHONPATH=/{CODE}",
    "PYTHONUNBUFFERED=1",
    "PYTHONDONTWRITEBYTECODE=1",
    # A service is found where it was installed, whatever folder it is started in.
    "PYTHONSAFEPATH=1",
)


_OURS = frozenset({".py", ".html", ".css", ".js", ".svg"})
"""Kinds of files of ours: programs, and the proxy's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One image.

    `module` is started; `code` are the packages of ours that it holds, `left_out` parts of them
    that it doesn't. `layers` are those of `wheels`. `why_root` says what a root image needs it for;
    `sqlite`: with Python's sqlite3.
    """

    name: str
    title: str
    module: str
    code: tuple[str, ...]
    layers: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    user: str = NOBODY
    why_root: str = ""
    environment: tuple[str, ...] = ()
    tools: bool = False
    sqlite: bool = False

    @property
    def entrypoint(self) -> tuple[str, ...]:
        """In exec form: there is no shell."""
        return ("/usr/bin/python3.11", "-m", self.module)

    @property
    def stores(self) -> bool:
        """Whether it opens object stores, which takes certificate authorities."""
        return "checkpoint" in self.layers

    @property
    def env(self) -> tuple[str, ...]:
        """The environment of its containers."""
        return (*ENVIRONMENT, *self.environment)

    def sources(self) -> list[Path]:
        """The files of ours in it."""
        found = []
        for package in self.code:
            for path in sorted((REPOSITORY / package).rglob("*")):
                place = str(path.relative_to(REPOSITORY))
                if path.suffix in _OURS and not place.startswith(self.left_out):
                    found.append(path)
        return found


_CLUSTER = (wheels.COMMON, wheels.CLIENT)
_SIMULATED = ("kybernate/local/simgpu/",)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="sidecar",
            title="answers a managed pod's probes while it is parked",
            module="sidecar",
            code=("sidecar",),
        ),
        Recipe(
            name="agent",
            title="owns the seats of a node's GPUs",
            module="nodeagent",
            code=("kybernate", "nodeagent"),
            left_out=_SIMULATED,
            layers=(*_CLUSTER, "node", "checkpoint", "traces"),
            user=ROOT,
            why_root="It moves processes between cgroups, and journals below /var/lib/kyb.",
            environment=(f"KYB_AGENT_KYB_INIT=/{KYB_INIT}",),
            tools=True,
        ),
        Recipe(
            name="device-plugin",
            title="offers seats on a node's GPU groups to the kubelet",
            module="deviceplugin",
            code=("kybernate", "deviceplugin"),
            left_out=(*_SIMULATED, "kybernate/adapters/k8s/"),
            layers=(wheels.COMMON, "node"),
            user=ROOT,
            why_root="The kubelet's device-plugin folder and the agent's socket are root's.",
        ),
        Recipe(
            name="extender",
            title="places pods with seats on GPU groups",
            module="extender",
            code=("kybernate", "extender"),
            left_out=_SIMULATED,
            layers=(*_CLUSTER, "control"),
        ),
        Recipe(
            name="webhook",
            title="admits and completes pods with seats",
            module="webhook",
            code=("kybernate", "webhook"),
            left_out=_SIMULATED,
            layers=(*_CLUSTER, "control"),
        ),
        Recipe(
            name="proxy",
            title="routes requests to models and holds them while one wakes",
            module="proxy",
            code=("kybernate", "proxy"),
            left_out=_SIMULATED,
            layers=(*_CLUSTER, "proxy", "traces"),
        ),
        Recipe(
            name="registry",
            title="knows which saved states there are, and where",
            module="registry",
            code=("kybernate", "registry"),
            left_out=_SIMULATED,
            layers=(*_CLUSTER, "registry", "checkpoint", "pkcs11"),
            sqlite=True,
        ),
        Recipe(
            name="controller",
            title="carries out what objects such as CheckpointRequests ask for",
            module="controller",
            code=("kybernate", "controller"),
            left_out=_SIMULATED,
            layers=(*_CLUSTER, "control"),
        ),
        Recipe(
            name="sample",
            title="a toy model server, to see seats work before real models come",
            module="tests.workloads.toy_server",
            code=("tests/workloads",),
            layers=(wheels.COMMON, "node"),
        ),
    )
}
"""By the image's name."""


def version() -> str:
    """The project's version, which is every image's tag."""
    project = tomllib.loads(wheels.PROJECT.read_text())["project"]
    return str(project["version"])
