"""Export and import: to the same bytes under other keys, for whom is trusted, and nothing else."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kybernate.adapters.keys import artifactkeys
from kybernate.adapters.keys.artifactkeys import WrapKeys
from kybernate.adapters.objects.tar import TarReader, TarWriter
from kybernate.checkpoint.delivery import transfer
from kybernate.checkpoint.places import Place
from kybernate.core.artifacts import layout
from kybernate.errors import CorruptError, LockedError, NotFoundError, RefusedError
from kybernate.lib.deadline import Deadline
from tests.unit.checkpoint.kit import KEYS, contents, fetched, make_dump, pack_dump, place

TRANSPORT = os.urandom(32)
OTHER = artifactkeys.generated()
"""The keys of another cluster."""
ARRIVAL = transfer.Naming(datetime(2026, 2, 1, tzinfo=UTC), 7)
BELIEVED = replace(KEYS, signer=None, kms=WrapKeys((TRANSPORT,)))
"""What the other cluster is given: our public key, and the transport key."""


@pytest.fixture
def export(tmp_path):
    """An export in a tar archive, and the dump that is in it."""
    here = place(tmp_path / "here")
    dump = make_dump(tmp_path / "dump", blocks=200)
    made = pack_dump(dump, here)
    with (tmp_path / "x.tar").open("wb") as file:
        writer = TarWriter(file)
        target = Place("x.tar", writer, read_back=False)
        transfer.exported(made.id, (here, KEYS), target, TRANSPORT, Deadline(60))
        writer.close()
    return tmp_path / "x.tar", made


def arrive(source, keys, where):
    return transfer.imported((source, keys), (where, OTHER), ARRIVAL, Deadline(60))


def archive(path):
    return Place(path.name, TarReader(path))


def test_another_cluster_gets_the_same_bytes_under_its_own_keys(export, tmp_path):
    path, made = export
    there = place(tmp_path / "there")
    got = arrive(archive(path), BELIEVED, there)
    assert got.origin == made.id
    assert got.id == "team-a/llama-0@20260201T000000Z-00000007"
    assert fetched(there, got.id, tmp_path / "back", OTHER) == contents(tmp_path / "dump")
    with pytest.raises(LockedError, match="not trusted"):
        fetched(there, got.id, tmp_path / "x", KEYS)


def test_it_may_arrive_in_another_namespace(export, tmp_path):
    there = place(tmp_path / "there")
    got = transfer.imported(
        (archive(export[0]), BELIEVED),
        (there, OTHER),
        replace(ARRIVAL, namespace="team-z"),
        Deadline(60),
    )
    assert got.id.startswith("team-z/")
    assert fetched(there, got.id, tmp_path / "back", OTHER) == contents(tmp_path / "dump")


def test_a_folder_serves_as_well(tmp_path):
    here, folder = place(tmp_path / "here"), place(tmp_path / "export")
    made = pack_dump(make_dump(tmp_path / "dump"), here)
    transfer.exported(made.id, (here, KEYS), folder, TRANSPORT, Deadline(60))
    there = place(tmp_path / "there")
    got = arrive(folder, BELIEVED, there)
    assert fetched(there, got.id, tmp_path / "back", OTHER) == contents(tmp_path / "dump")
    with pytest.raises(RefusedError, match="holds an export already"):
        transfer.exported(made.id, (here, KEYS), folder, TRANSPORT, Deadline(60))


def test_an_export_opens_no_other_artifact_of_the_namespace(tmp_path):
    here, folder = place(tmp_path / "here"), place(tmp_path / "export")
    made = pack_dump(make_dump(tmp_path / "a", 1), here, 1)
    pack_dump(make_dump(tmp_path / "b", 2), here, 2)
    transfer.exported(made.id, (here, KEYS), folder, TRANSPORT, Deadline(60))
    ours = {info.key.rsplit("/", 1)[1] for info in here.objects.scan(layout.PACKS)}
    theirs = {info.key.rsplit("/", 1)[1] for info in folder.objects.scan(layout.PACKS)}
    assert not ours & theirs
    with pytest.raises(LockedError, match="not here"):
        fetched(here, made.id, tmp_path / "back", BELIEVED)


def test_who_is_not_trusted_is_not_believed(export, tmp_path):
    stranger = replace(artifactkeys.generated(), kms=WrapKeys((TRANSPORT,)))
    with pytest.raises(RefusedError, match="not trusted here"):
        arrive(archive(export[0]), stranger, place(tmp_path / "there"))


def test_without_the_transport_key_nothing_opens(export, tmp_path):
    without = replace(BELIEVED, kms=WrapKeys((os.urandom(32),)))
    with pytest.raises(LockedError, match="not here"):
        arrive(archive(export[0]), without, place(tmp_path / "there"))


def test_an_archive_that_was_changed_is_noticed_and_leaves_no_artifact(export, tmp_path):
    path, _ = export
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    there = place(tmp_path / "there")
    with pytest.raises(CorruptError):
        arrive(archive(path), BELIEVED, there)
    assert not list(there.objects.scan(layout.ARTIFACTS))


def test_an_archive_cut_short_is_noticed(export, tmp_path):
    path, _ = export
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises((CorruptError, NotFoundError)):
        arrive(archive(path), BELIEVED, place(tmp_path / "there"))


def test_any_tar_reads_an_archive_and_its_manifest_comes_last(export):
    with tarfile.open(export[0]) as tar:
        names = tar.getnames()
    assert names[-1].endswith("/manifest")
    assert not [name for name in names if name.startswith("leases/")]


@pytest.mark.parametrize("content", [b"", b"x" * 10_000])
def test_what_is_no_archive_says_so(tmp_path, content):
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises((CorruptError, NotFoundError)):
        arrive(archive(tmp_path / "x.tar"), BELIEVED, place(tmp_path / "there"))
    with pytest.raises(NotFoundError):
        TarReader(tmp_path / "none.tar")


def test_an_archive_can_be_changed_by_nobody(export):
    reader, writer = TarReader(export[0]), TarWriter(io.BytesIO())
    with pytest.raises(RefusedError):
        reader.put("a/b", b"")
    with pytest.raises(RefusedError):
        reader.delete(["a/b"])
    writer.put("a/b", b"1", create=True)
    with pytest.raises(RefusedError):
        writer.delete(["a/b"])
    with pytest.raises(NotFoundError):
        writer.head("a/c")
