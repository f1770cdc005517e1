"""`python -m tests.upgrade.record RELEASE`: what a release leaves behind, for tests/unit/upgrade.

Its own code writes everything: a small saved state with its keys, and, from a cluster with a seat
in each tier, what lies on the node, in the registry and in the API server. Run once per release.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster.layout import REPOSITORY
from tests.upgrade.fleet import NODE, fleet
from tests.upgrade.seats import Seats
from tests.upgrade.versions import version

if TYPE_CHECKING:
    from tests.upgrade.fleet import Fleet

FILES = REPOSITORY / "tests" / "unit" / "upgrade" / "files"

_STATE = """
import asyncio, sys
from pathlib import Path
from kybernate.adapters.keys.artifactkeys import read_folder
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.vault import Vault
from tests.kit.criuimages import write_pages
from kybernate.types import PodUid, Tier

work, target = map(Path, sys.argv[1:])
FACTS = {
    "namespace": "team-a", "pod": "llama-0", "pod_uid": "5e1f", "container": "main",
    "image_digest": "sha256:abc", "spec_hash": "9f2c", "kernel": "6.18.5", "criu": "4.2.1",
    "architecture": "x86_64", "highest_pid": 312, "privileges": {"uids": [0], "gids": [0]},
}

async def main():
    (work / "nvme").mkdir()
    places = {Tier.NVME: open_place(str(work / "nvme"), "nvme"),
              Tier.OBJECT: open_place(str(target / "objects"), "object store")}
    vault = Vault(places, Tier.NVME, read_folder(target / "keys"))
    images = await vault.begin(PodUid("5e1f"))
    write_pages(images, 1, [(0x10000000, bytes(range(256)) * 512), (0x20000000, bytes(8192))])
    (images / "core-1.img").write_bytes(b"core of process 1")
    artifact = await vault.seal(images, FACTS, 60)
    await vault.pack(artifact, Tier.OBJECT, 60)
    print(artifact)

asyncio.run(main())
"""

_REWRITE = """
import json, sys
from pathlib import Path
from kybernate.adapters.files.journal import FileJournal
path = Path(sys.argv[1])
first = json.loads(path.read_text().splitlines()[0].partition(" ")[2])
journal = FileJournal(path, first["e"])
journal.load()
journal.close()
path.with_suffix(".lock").unlink()
"""
"""What an agent does when it starts: the file is as short as it can be then."""


@click.command()
@click.argument("release")
def main(release: str) -> None:
    """Write the files anew."""
    target = FILES / release
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        _saved_state(release, Path(name), target)
    with tempfile.TemporaryDirectory() as name, fleet(release, Path(name)) as made:
        seats = Seats(made, "old")
        seats.open()
        _from_node(made, target)
    for path in sorted(target.rglob("*")):
        click.echo(f"{path.stat().st_size:8} {path.relative_to(target)}")


def _saved_state(release: str, work: Path, target: Path) -> None:
    """A state in an object store, and the keys that open it."""
    used = version(release)
    (target / "objects").mkdir()
    used.command("artifacts", "keys", "--dir", str(target / "keys"))
    (target / "artifact.txt").write_text(used.python(_STATE, str(work), str(target)) + "\n")


def _from_node(made: Fleet, target: Path) -> None:
    node = made.cluster.layout.node(NODE)
    found = {
        "journal": _one(node.root / "lib-kyb", "journal*", ".lock"),
        "inventory.json": _one(node.root / "lib-kyb", "inventory.json"),
        "cdi.json": _one(node.cdi, "kyb-*.json"),
        "kybernate.json": _one(made.folder / "nvme", "kybernate.json"),
        "manifest": _one(made.folder / "nvme", "manifest"),
    }
    for name, path in found.items():
        shutil.copyfile(path, target / name)
    made.of("agent").python(_REWRITE, str(target / "journal"))
    with closing(sqlite3.connect(made.folder / "registry.db")) as database:
        (target / "registry.sql").write_text("\n".join(database.iterdump()) + "\n")
    node_object = made.cluster.api().get(f"{keys.GPU_NODES_PATH}/{NODE}")
    (target / "gpunode.json").write_text(json.dumps(node_object, indent=1) + "\n")


def _one(folder: Path, pattern: str, but: str = "-") -> Path:
    found = sorted(path for path in folder.rglob(pattern) if path.suffix != but)
    if not found:
        raise KybernateError(f"no {pattern} below {folder}")
    return found[0]


if __name__ == "__main__":
    main()
