"""Namespaces' keys by a registry over mutual TLS, as `kybernate artifacts` uses them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from kybernate.adapters.keys.artifactkeys import make_folder, read_folder
from kybernate.adapters.registry.nodekeys import Asker
from kybernate.checkpoint.places import cipher_of, data_key, open_place, read_manifest
from kybernate.cli import main
from kybernate.errors import KybernateError
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.unit.checkpoint.kit import make_dump, pack_dump

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.servers.registryserver import Server

pytestmark = pytest.mark.integration


@pytest.fixture
def server(start: Callable[..., Server], tmp_path: Path) -> Server:
    (tmp_path / "wrap").mkdir()
    (tmp_path / "wrap" / "wrap-1.key").write_text(os.urandom(32).hex())
    return start(f"sqlite:///{tmp_path}/registry.db", WRAP_KEYS=str(tmp_path / "wrap"))


def test_an_import_is_wrapped_for_the_namespace_that_it_goes_into(
    server: Server, tls: Path, tmp_path: Path
) -> None:
    make_folder(tmp_path / "keys", "here")
    (tmp_path / "keys" / "wrap-1.key").unlink()
    own = replace(read_folder(tmp_path / "keys"), kms=server.kms())
    store = open_place(str(tmp_path / "store"))
    saved = pack_dump(make_dump(tmp_path / "dump"), store, keys=own, namespace="team-a")
    given = {"KYB_REGISTRY_URL": server.url, "KYB_TLS_DIR": str(tls)}
    given["KYB_ARTIFACT_KEYS"] = str(tmp_path / "keys")

    def run(*words: object) -> str:
        done = CliRunner().invoke(main, ["artifacts", *map(str, words)], env=given)
        assert done.exit_code == 0, done.output
        return done.stdout

    out, transport = tmp_path / "out.tar", ("--transport-key", tmp_path / "transport")
    run("export", tmp_path / "store", saved.id, out, *transport)
    trust = ("--trust", tmp_path / "keys" / "trust-here.pub")
    made = run("import", out, tmp_path / "store", *trust, *transport, "-n", "team-b").split()[-1]
    assert made.startswith("team-b/")
    taken = read_manifest(store, made, own)
    ids = {ns: server.kms().wrap(b"x", ns)[0] for ns in ("team-a", "team-b")}
    assert (saved.key.by, taken.key.by) == (ids["team-a"], ids["team-b"])
    secrets = {ns: data_key(store, ns, own)[1] for ns in ids}
    assert secrets["team-a"] != secrets["team-b"]
    assert f"{made}: whole" in run("verify", tmp_path / "store", made)
    uids = {
        one["id"]: one["namespace_uid"]
        for one in json.loads(run("ls", tmp_path / "store", "--json"))
    }
    assert set(uids) == {saved.id, made}
    # And what its namespace's key opens goes with that key.
    told = run("shred", "team-b", "--why", "they left", "--after", "0")
    assert ids["team-b"] in told
    assert "they left" in run("shred", "team-b", "--dry-run")


def test_a_namespaces_keys_are_destroyed_unless_one_changes_ones_mind(
    server: Server, tls: Path, tmp_path: Path
) -> None:
    """As docs/how-to/operate/destroy-a-namespaces-keys.md has it."""
    own, _ = server.kms().wrap(b"x", "team-a")
    reader = Kubectl(Path("/nonexistent/kubectl"), tmp_path, tmp_path / "none")
    (tmp_path / "pki").symlink_to(tls)
    shred = "kybernate artifacts shred team-a --registry https://localhost:9446 --tls pki"
    with Page("destroy-a-namespaces-keys", reader, registry=server.url) as page:
        before = page(f"{shred} --dry-run")
        assert own in before
        assert _timeless(before) != before
        assert "they left" in page(f"{shred} --why")
        assert "they left" in page(f"{shred} --dry-run")
        page(f"{shred} --keep")
        assert _timeless(page(f"{shred} --dry-run")) == _timeless(before)


def _timeless(text: str) -> str:
    """Without when it would be: by the next run a minute may have begun."""
    return re.sub(r"\d\d-\d\d \d\d:\d\d UTC", "", text)


def test_a_node_packs_with_the_key_it_is_given_and_another_can_not_open_it(
    server: Server, tmp_path: Path
) -> None:
    make_folder(tmp_path / "keys", "here")
    folder = read_folder(tmp_path / "keys")
    here = replace(folder, kms=server.kms("agent-n1", Asker("team-a", "u1")))
    store = open_place(str(tmp_path / "store"))
    saved = pack_dump(make_dump(tmp_path / "dump"), store, keys=here, namespace="team-a")
    assert cipher_of(saved, here)
    for other in (Asker("team-a", "u1"), Asker("team-b", "u2", saved.id)):
        there = replace(folder, kms=server.kms("agent-n2", other))
        with pytest.raises(KybernateError):
            cipher_of(saved, there)
    with pytest.raises(KybernateError):
        cipher_of(saved, folder)
