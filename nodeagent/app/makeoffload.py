"""Offloading put together from the settings: CRIU, the vault, the gate."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals import NetworkGate
from kybernate.adapters.criu import Criu, Tools, is_static
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.adapters.kernel.treefacts import bytes_of
from kybernate.adapters.objects.objects import REMOTE
from kybernate.checkpoint.delivery.inbox import Inbox
from kybernate.checkpoint.delivery.outbox import Outbox
from kybernate.checkpoint.placed import PlacedCopies
from kybernate.checkpoint.places import open_place, place_of
from kybernate.checkpoint.raw.stream import Seen
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts.grants import no_grants
from kybernate.errors import ConfigError
from kybernate.runtime.identity import Identity
from kybernate.types import Tier
from nodeagent.app.makekeys import make_keys
from nodeagent.offload.helper import notes_of
from nodeagent.offload.images.carried import Carried
from nodeagent.offload.images.dumper import AgentDumper
from nodeagent.offload.images.first import Marks, first_of
from nodeagent.seat.facts import Facts
from nodeagent.seat.offloading import Offloading, whole_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.grants import Grant
    from kybernate.ports import Images, Inits, Objects
    from kybernate.settings.agent import AgentSettings
    from nodeagent.offload.arrivals import GuardedFreezer
    from nodeagent.seat.node import Inventory
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_NVME_SHARE = 0.8
_PLACED = ".placed"
"""The folder, beside the artifacts of seats, of copies that TierPlacements want here."""
_OLDEST_CRIU = (4, 2)
_VERSION_DEADLINE = 10.0
_VERSION = re.compile(r"Version:\s*([0-9.]+)")


def make_offload(  # noqa: PLR0913, PLR0917 - each is made, or given, once
    settings: AgentSettings,
    freezer: GuardedFreezer,
    inits: Inits,
    inventory: Callable[[], Inventory | None],
    images: Images,
    grants: Callable[[], tuple[Grant, ...]] = no_grants,
    identity: Identity | None = None,
    *,
    seats: Callable[[], Iterable[Seat]] = tuple,
) -> Offloading | None:
    """None without a CRIU. `grants`: see `Facts`; `identity`: that of the mounted certificate, if
    none is given; `seats`: those of the node, from any thread. Raises ConfigError, naming the
    setting."""
    if settings.criu is None:
        return None
    if settings.kyb_enter is None:
        raise ConfigError("kyb_enter", "criu needs it; name the built kyb-enter (make native)")
    for field, path in (("criu", settings.criu), ("kyb_enter", settings.kyb_enter)):
        if not os.access(path, os.X_OK):
            raise ConfigError(field, f"{path} is no program; build it, or leave out criu")
    criu = fit_version(settings.criu)
    tools, work = Tools(settings.kyb_enter, settings.criu), settings.state_dir / "criu"
    dumper = Criu(tools, freezer, work, inits=inits)
    procs = Procfs()
    own = identity or Identity(settings.node, settings.tls_dir)
    places, artifact_keys, seen = _places(settings, own), make_keys(settings, own, seats), Seen()
    local = places[Tier.NVME]
    carried = Carried(settings.carry_bytes)
    facts = Facts(settings, freezer, inventory, images, criu, carried.missing, grants=grants)
    marks = Marks(freezer.pids, procs, notes_of(settings))
    beside, placed = None, None
    if Tier.OBJECT in places:
        beside = open_place(str(local.local / _PLACED), "nvme (placed)")
        placed = PlacedCopies(beside, places[Tier.OBJECT], artifact_keys)
    inbox = Inbox(local, artifact_keys, seen, settings.transfer_deadline_s)
    return Offloading(
        dumper=AgentDumper(dumper, freezer.forget, carried, marks),
        vault=Vault(
            places,
            Tier.NVME,
            artifact_keys,
            seen=seen,
            left=carried.left,
            beside=beside,
        ),
        gatekeeper=NetworkGate(settings.run_dir / "gates", procs.descendants),
        culprits=procs,
        facts=facts,
        limits=limits(settings, places),
        weigh=lambda seat: bytes_of(freezer.pids(seat.tree.handle)),
        into=facts.into,
        first=first_of,
        inbox=inbox,
        outbox=Outbox(local, artifact_keys, seen),
        whole=whole_in(inbox),
        placed=placed,
    )


def _places(settings: AgentSettings, identity: Identity) -> Mapping[Tier, Place]:
    folder = settings.nvme_dir or settings.state_dir / "saved"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    places = {Tier.NVME: open_place(str(folder), "nvme")}
    if settings.object_store:
        rate = float(settings.object_bytes_per_s)
        if signed_for(settings):
            places[Tier.OBJECT] = place_of(
                _signed_objects(settings, identity), "object store", rate
            )
        else:
            places[Tier.OBJECT] = open_place(settings.object_store, "object store", rate)
    return places


def signed_for(settings: AgentSettings) -> bool:
    """Whether the registry signs for the object store; if not, and it is one that has credentials,
    the log says so."""
    if settings.object_store.partition("://")[0] not in REMOTE:
        return False
    if settings.registry_url and settings.object_access == "registry":
        return True
    log.warning(
        "this node has the credentials of %s, and so the artifacts of every pod: set registry_url, "
        "object_access: registry here, and object_store at the registry",
        settings.object_store,
    )
    return False


def _signed_objects(settings: AgentSettings, identity: Identity) -> Objects:
    from kybernate.adapters.registry.node import OwnClient  # noqa: PLC0415 - where it is used
    from kybernate.adapters.registry.objects import RegistryObjects  # noqa: PLC0415 - as above

    return RegistryObjects(OwnClient(settings.registry_url, identity))


def limits(settings: AgentSettings, places: Mapping[Tier, Place]) -> Mapping[Tier, int]:
    """Bytes that each of these may hold."""
    disk = os.statvfs(places[Tier.NVME].local)
    found = {Tier.NVME: settings.nvme_bytes or int(disk.f_blocks * disk.f_frsize * _NVME_SHARE)}
    if Tier.OBJECT in places:
        found[Tier.OBJECT] = settings.object_bytes or sys.maxsize
    return found


def fit_version(criu: Path) -> str:
    """Of this CRIU, which can be used. Raises ConfigError."""
    version = _version_of(criu)
    if tuple(int(part) for part in version.split(".") if part) < _OLDEST_CRIU:
        raise ConfigError(
            "criu", f"{criu} is version {version}; name a static CRIU of 4.2 or newer (make criu)"
        )
    if not is_static(criu):
        raise ConfigError(
            "criu",
            f"{criu} is not static: inside a container it would run the container's libraries as "
            "root; name the one of `make criu`, and no distribution's",
        )
    return version


def _version_of(criu: Path) -> str:
    try:
        said = subprocess.run(
            [criu, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_DEADLINE,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError("criu", f"{criu} doesn't say its version: {error}") from error
    found = _VERSION.search(said)
    if found is None:
        raise ConfigError("criu", f"{criu} doesn't say its version; name a CRIU of 4.2 or newer")
    return found[1]
