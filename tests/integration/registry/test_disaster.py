"""Bucket, database and wrapping keys are lost, and come back from backups alone, as
docs/how-to/failures/recover-the-registry.md has it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.keys.artifactkeys import ArtifactKeys, make_folder
from kybernate.checkpoint.places import open_place, read_manifest
from kybernate.errors import KybernateError
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.servers import s3
from tests.kit.servers.registryserver import signing
from tests.unit.checkpoint.kit import contents, fetched, make_dump, pack_dump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.checkpoint.places import Place
    from tests.kit.servers.registryserver import Server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-"),
]


@dataclass
class Site:
    """A registry, its bucket and its keys in `folder`, and what is kept elsewhere: `copies` of
    objects, and the folder `backup`."""

    folder: Path
    bucket: Place
    start: Callable[..., Server]
    by_node: ArtifactKeys
    copies: dict[str, bytes] = field(default_factory=dict)

    @property
    def wraps(self) -> Path:
        """What is mounted of the Secret kyb-wrap-keys."""
        return self.folder / "wrap"

    def begin(self, database: Path) -> Server:
        """A registry over this file."""
        return self.start(f"sqlite:///{database}", WRAP_KEYS=str(self.wraps))

    def back_up(self) -> None:
        """Object by object, as the stores' own tools do; and the wrapping key."""
        objects = self.bucket.objects
        self.copies = {one.key: bytes(objects.get(one.key)) for one in objects.scan("")}
        shutil.copy(self.wraps / "wrap-1.key", self.folder / "backup")

    def lose(self, database: Path) -> None:
        """All that isn't elsewhere."""
        self.bucket.objects.delete(list(self.copies))
        assert not list(self.bucket.objects.scan(""))
        (self.wraps / "wrap-1.key").unlink()
        for file in self.folder.glob(f"{database.name}*"):
            file.unlink()

    def opened(self, artifact: str, database: Path) -> dict[str, bytes]:
        """The files of an artifact, by what the registry gives a node that begins anew."""
        server = self.begin(database)
        try:
            own = replace(self.by_node, kms=server.kms())
            return fetched(self.bucket, artifact, self.folder / f"images-{server.port}", own)
        finally:
            server.kill()


@pytest.fixture
def site(
    tmp_path: Path, tls: Path, start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    for name in ("wrap", "backup", "nvme"):
        (tmp_path / name).mkdir()
    make_folder(tmp_path / "keys", "here")
    for name in ("ca.crt", "agents-ca.crt"):
        shutil.copy(tls / name, tmp_path / "keys")
    (tmp_path / "keys" / "wrap-1.key").rename(tmp_path / "wrap" / "wrap-1.key")
    by_node = ArtifactKeys(None, {}, nodes=signing("n1", tls, tmp_path / "n1"))
    with s3.server(tmp_path / "s3") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield Site(tmp_path, open_place(store.url), start, by_node)


@pytest.mark.parametrize("backed_up", [True, False], ids=["with-database", "without-database"])
def test_a_bucket_that_was_lost_is_put_back_and_its_artifacts_are_opened(
    site: Site, *, backed_up: bool
) -> None:
    served, restored = site.folder / "served.db", site.folder / "registry.db"
    reader = Kubectl(Path("/nonexistent/kubectl"), site.folder, site.folder / "none")
    reader.environment |= {
        "KYB_REGISTRY_DATABASE": f"sqlite:///{restored}",
        "KYB_REGISTRY_CLUSTER": "none",
        "KYB_REGISTRY_WRAP_KEYS": str(site.wraps),
    }
    places = {"objects": site.bucket.name, "nvme": str(site.folder / "nvme")}
    page = Page("recover-the-registry", reader, database=str(served), **places)
    server = site.begin(served)
    server.client().settle("new")
    dump = make_dump(site.folder / "dump")
    keys = replace(site.by_node, kms=server.kms())
    saved = pack_dump(dump, site.bucket, keys=keys)
    site.back_up()
    if backed_up:
        page("kubectl -n kyb-system exec")
    server.kill()
    site.lose(served)
    with pytest.raises(KybernateError):
        read_manifest(site.bucket, saved.id, site.by_node)
    for key, data in site.copies.items():
        site.bucket.objects.put(key, data)
    page("kyb-registry unsettle")
    assert "1 artifacts taken in" in page("kyb-registry rebuild")
    with pytest.raises(KybernateError):
        site.opened(saved.id, restored)
    shutil.copy(site.folder / "backup" / "wrap-1.key", site.wraps)
    taken = page("kyb-registry rebuild")
    assert f" {0 if backed_up else 1} keys of namespaces taken in" in taken
    page("kyb-registry settle")
    assert site.opened(saved.id, restored) == contents(dump)
