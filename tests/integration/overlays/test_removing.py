"""Removed as docs/how-to/install/remove.md has it, and what stays until somebody asks."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from kybernate import keys
from kybernate.adapters.keys.artifactkeys import ArtifactKeys
from kybernate.checkpoint.places import open_place
from tests.cluster.layout import REPOSITORY
from tests.integration.overlays.installation import LOOP, NODE, begun, keyed, remove
from tests.kit.howto import Page
from tests.kit.servers import s3
from tests.kit.servers.registryserver import signing
from tests.unit.checkpoint.kit import contents, fetched, make_dump, pack_dump

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.checkpoint.places import Place
    from tests.cluster.cluster import Cluster
    from tests.kit.clients.kubectl import Kubectl

pytestmark = pytest.mark.integration

OFFLOADING = REPOSITORY / "config" / "overlays" / "below-ram"
MADE = "DirectoryOrCreate"


@pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-")
@pytest.mark.usefixtures("installed")
def test_artifacts_stay_in_the_store_until_somebody_asks(
    bare: Cluster, reader: Kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/how-to/install/remove.md has it. A new installation opens them by the folders that
    the first one's administrator has kept, and by nothing else."""
    keyed(reader)
    nodes = signing(NODE, reader.folder / "pki", tmp_path / NODE)
    dump = make_dump(tmp_path / "dump")
    with s3.server(tmp_path / "s3") as store, monkeypatch.context() as patched:
        for name, value in store.environment.items():
            patched.setenv(name, value)
        reader.environment |= store.environment
        bucket = open_place(store.url)
        with begun(bare, tmp_path / "first", OBJECT_STORE=store.url) as server:
            own = ArtifactKeys(None, {}, server.kms(), nodes)
            saved = pack_dump(dump, bucket, keys=own)
        before = stored(bucket)
        page = Page("remove", reader, store=store.url)
        remove(bare, page)
        assert stored(bucket) == before
        (tmp_path / "registry.db").unlink()

        # The database went with its volume, the Secrets with the namespace.
        again(reader)
        reader.environment |= {
            "KYB_REGISTRY_DATABASE": f"sqlite:///{tmp_path}/registry.db",
            "KYB_REGISTRY_WRAP_KEYS": str(reader.folder / "keys"),
            "KYB_REGISTRY_CLUSTER": "none",
        }
        places = {"objects": store.url, "nvme": str(tmp_path / "nvme")}
        recover = Page("recover-the-registry", reader, **places)
        assert "1 artifacts taken in" in recover("kyb-registry rebuild")
        rm = "kybernate artifacts rm s3://BUCKET/kybernate --all"
        with begun(bare, tmp_path / "second", OBJECT_STORE=store.url) as server:
            with page.start(f"{rm} --yes --keys keys --registry", registry=server.url) as refused:
                _, why = refused.communicate(timeout=60)
            assert (refused.returncode, "nothing was deleted" in why) == (1, True), why
            assert f"pod {saved.facts.namespace}/{saved.facts.pod_uid}: who continues" in why
            recover("kyb-registry settle")
            assert server.client().get(saved.id).id == saved.id
            own = ArtifactKeys(None, {}, server.kms(), nodes)
            assert fetched(bucket, saved.id, tmp_path / "opened", own) == contents(dump)

        (line,) = [one for one in page(f"{rm} --keys").splitlines() if "team-a" in one]
        assert line.split()[:2] == ["team-a", "1"]
        assert stored(bucket) == before
        page(f"{rm} --yes --keys keys\n")
        assert stored(bucket) == {}
    bare.kubectl("delete", "namespace", keys.NAMESPACE)


def stored(bucket: Place) -> dict[str, bytes]:
    """All that is in the store."""
    return {one.key: bytes(bucket.objects.get(one.key)) for one in bucket.objects.scan("")}


def again(reader: Kubectl) -> None:
    """Another installation by who has kept the folders: up to its Secrets."""
    page = Page("install", reader)
    page("kubectl apply -f config/rbac/namespace.yaml")
    page("kybernate pki init")
    page(LOOP)
    page("kybernate pki secret --agents")
    keyed(reader)


def written_on_nodes(bare: Cluster) -> set[str]:
    """Folders that our pods have on a node because they make them there."""
    found = set()
    for one in yaml.safe_load_all(bare.kubectl("kustomize", str(OFFLOADING))):
        if one["kind"] == "DaemonSet":
            pod = one["spec"]["template"]["spec"]
            mounts = [mount for each in pod["containers"] for mount in each["volumeMounts"]]
            written = {mount["name"] for mount in mounts if not mount.get("readOnly")}
            paths = [one.get("hostPath", {}) for one in pod["volumes"] if one["name"] in written]
            found |= {path["path"] for path in paths if path.get("type") == MADE}
    return found


def only_below(folder: Path, program: Path) -> None:
    """An rm that takes nothing away of the machine that runs this, whatever a line has."""
    program.write_text(
        "#!/bin/sh\n"
        f"for one; do case $one in -rf | {folder}/*) ;; *) exit 9 ;; esac; done\n"
        f'exec {shutil.which("rm")} "$@"\n'
    )
    program.chmod(0o755)


def test_nodes_keep_nothing(bare: Cluster, reader: Kubectl, tmp_path: Path) -> None:
    """As docs/how-to/install/remove.md has it."""
    page = Page("remove", reader, node=str(tmp_path))
    for path in written_on_nodes(bare):
        folder = tmp_path / path.removeprefix("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("kyb-1.json", "others.json"):
            (folder / name).write_text("{}")
    only_below(tmp_path, reader.folder / "rm")
    page("rm -rf /run/kyb")
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["others.json"]
