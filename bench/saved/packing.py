"""What the benches of saved states share: keys, facts, packing one dump."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kybernate.adapters.keys import artifactkeys
from kybernate.checkpoint.packs import pack
from kybernate.checkpoint.packs.blocks import raw_sources
from kybernate.checkpoint.raw import seal
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.lib.deadline import Deadline

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest

FACTS: dict[str, object] = {
    "namespace": "bench",
    "pod": "model",
    "pod_uid": "0",
    "container": "main",
    "image_digest": "sha256:0",
    "spec_hash": "0",
    "kernel": os.uname().release,
    "criu": "4.2.1",
    "architecture": os.uname().machine,
    "highest_pid": 1,
    "privileges": {"uids": [0], "gids": [0]},
}
Keys = artifactkeys.generated
LIMIT = 600.0


def draft(pod: str = "model") -> Manifest:
    """A manifest without bytes."""
    now = datetime.now(UTC)
    artifact = layout.make_id("bench", pod, now, secrets.randbits(32))
    return seal.draft(artifact, manifests.facts_of({**FACTS, "pod": pod}), now)


def pack_dump(folder: Path, place: Place, keys: ArtifactKeys, pod: str) -> Manifest:
    """Pack a dump that nobody has sealed."""
    return pack.pack(raw_sources(folder), draft(pod), place, keys, Deadline(LIMIT))


def directory_bytes(folder: Path) -> int:
    """The bytes of all files below it."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += (folder.__class__(where) / name).stat().st_size
    return total
