"""What each release left behind, written by its own code, is read by today's.

`python -m tests.upgrade.record RELEASE` has made the files.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.state import StateFile
from kybernate.adapters.container.cdi import CdiSpecs
from kybernate.adapters.criu.record import FILE, Record
from kybernate.adapters.files.journal import FileJournal
from kybernate.adapters.keys.artifactkeys import read_folder
from kybernate.api.gpunodes import read_status
from kybernate.api.nodeseats import read_gpu_node
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts import keyobjects
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.into import Into
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.seat.node import INVENTORY, SEAT, Inventory
from nodeagent.seat.record import from_record
from tests.kit.criuimages import write_pages
from tests.unit.registry.replica import Clock, Replica, url_of
from tests.upgrade.seats import TIERS
from tests.upgrade.versions import RELEASES

FILES = Path(__file__).parent / "files"


@pytest.fixture(params=RELEASES)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A release's files, as they may be changed."""
    shutil.copytree(FILES / request.param, tmp_path / "left")
    for path in (tmp_path / "left").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path / "left"


def tier_of(pod: str) -> str:
    return pod.rpartition("-")[2]


def gpus(left: Path) -> int:
    status = json.loads((left / "gpunode.json").read_text())["status"]
    return len(status["gpus"])


def test_its_packed_state_is_fetched_and_is_what_was_saved(left: Path, tmp_path: Path) -> None:
    artifact = ArtifactId((left / "artifact.txt").read_text().strip())
    (tmp_path / "nvme").mkdir()
    places = {
        Tier.NVME: open_place(str(tmp_path / "nvme"), "nvme"),
        Tier.OBJECT: open_place(str(left / "objects"), "object store"),
    }
    vault = Vault(places, Tier.NVME, read_folder(left / "keys"))
    into = Into("team-a", PodUid("5e1f"))

    images = tmp_path / "images"

    async def fetch() -> None:
        await vault.verify(artifact, Tier.OBJECT, 60)
        await vault.fetch(artifact, images, 60, into)

    asyncio.run(fetch())
    expected = tmp_path / "expected"
    expected.mkdir()
    write_pages(expected, 1, [(0x10000000, bytes(range(256)) * 512), (0x20000000, bytes(8192))])
    (expected / "core-1.img").write_bytes(b"core of process 1")
    assert {path.name: path.read_bytes() for path in images.iterdir()} == {
        path.name: path.read_bytes() for path in expected.iterdir()
    }


def test_its_journal_gives_every_seat_and_the_inventory(left: Path) -> None:
    first = json.loads((left / "journal").read_text().splitlines()[0].partition(" ")[2])
    journal = FileJournal(left / "journal", first["e"])
    records = journal.load()
    journal.close()
    assert journal.damage == ""
    seats = [from_record(record) for key, record in records.items() if key.startswith(SEAT)]
    states = {tier_of(seat.identity.pod.name): seat.state for seat in seats}
    assert set(states) == set(TIERS)
    assert states["vram"] is SeatState.ACTIVE
    assert {seat.saved.artifact != "" for seat in seats if seat.saved.copies} == {True}
    assert len(Inventory.from_record(records[INVENTORY]).gpus) == gpus(left)


def test_its_raw_states_are_described_as_they_were(left: Path) -> None:
    manifest = manifests.decode((left / "manifest").read_bytes().partition(b"\n")[2])
    assert manifest.form == "raw"
    assert tier_of(manifest.facts.pod) in ("nvme", "object")
    images = left / "images"
    images.mkdir()
    shutil.copyfile(left / "kybernate.json", images / FILE)
    record = Record.read(images)
    assert record.tree > 1
    told = json.loads((left / "kybernate.json").read_text())
    # 0.1.0 doesn't tell where a tree was at home.
    assert (record.home, record.ipc) == (told.get("home", ""), told.get("ipc", False))


def test_it_reads_what_today_writes_under_the_shared_key(left: Path) -> None:
    body = (left / "manifest").read_bytes().partition(b"\n")[2]
    # 0.1.0 refuses a manifest for a field that it doesn't know, and starts the workload anew.
    made = manifests.decode(body)
    made = replace(made, facts=replace(made.facts, namespace_uid="5e1f"))
    assert json.loads(manifests.encode(made)) == json.loads(body)


def test_it_reads_the_data_keys_that_its_own_wrapping_key_wraps_today(left: Path) -> None:
    for path in (left / "objects/keys").rglob("1"):
        key = keyobjects.decode(path.read_bytes(), "the data key")
        assert json.loads(keyobjects.encode(key)) == json.loads(path.read_bytes())
        return
    pytest.fail("there is none")


def test_its_seats_devices_are_known(left: Path) -> None:
    made = json.loads((left / "cdi.json").read_text())
    device = made["devices"][0]["name"]
    (left / "cdi").mkdir()
    shutil.copyfile(left / "cdi.json", left / "cdi" / f"kyb-{device}.json")
    specs = CdiSpecs(left / "cdi", links=left / "links")
    assert specs.ids() == {device}


def test_its_groups_are_remembered(left: Path) -> None:
    remembered = StateFile(left).load()
    assert remembered is not None
    assert len(remembered.inventory.groups) == gpus(left)


def test_its_nodes_have_seats_and_keep_todays_schema(left: Path) -> None:
    found = json.loads((left / "gpunode.json").read_text())
    assert len(read_gpu_node(found, 0).groups) == gpus(left)
    _, told = read_status(found)
    assert {tier_of(seat.pod) for seat in told.seats} == set(TIERS)


def test_its_registry_goes_on_with_pods_and_states(left: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "registry.db")) as database:
        database.executescript((left / "registry.sql").read_text())
        pods = database.execute("SELECT namespace, uid FROM pods ORDER BY uid").fetchall()
        ids = {row[0] for row in database.execute("SELECT id FROM artifacts")}
    assert pods
    assert ids
    replica = Replica(url_of(tmp_path), Clock())
    listed = replica.controller("GET", "/v1/artifacts?limit=500")
    assert listed.status == 200
    assert {one["id"] for one in listed.body["items"]} == ids
    for namespace, uid in pods:
        assert replica.controller("GET", f"/v1/pods/{namespace}/{uid}").status == 200
    replica.close()
