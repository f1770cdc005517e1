"""`kybernate artifacts`, on a folder with real artifacts in it."""

from __future__ import annotations

import base64
import json
import os
import time

import pytest
import yaml
from click.testing import CliRunner

from kybernate.adapters.keys import artifactkeys
from kybernate.adapters.registry import client, wire
from kybernate.checkpoint import vault
from kybernate.cli import main
from kybernate.cli.artifacts import commands as artifacts
from kybernate.core.artifacts import layout
from kybernate.errors import DeadlineError, NotFoundError
from tests.unit.checkpoint.kit import contents, fetched, make_dump, pack_dump, place
from tests.unit.registry.replica import Clock, Replica, recording, url_of


@pytest.fixture
def states(tmp_path, monkeypatch):
    """A place with one artifact, and the keys in the environment."""
    artifactkeys.make_folder(tmp_path / "keys", "here")
    monkeypatch.setenv("KYB_ARTIFACT_KEYS", str(tmp_path / "keys"))
    # Where a program reads, no name is folded.
    monkeypatch.setenv("COLUMNS", "80")
    keys = artifactkeys.read_folder(tmp_path / "keys")
    made = pack_dump(make_dump(tmp_path / "dump"), place(tmp_path / "states"), keys=keys)
    return tmp_path / "states", made


def run(*args, fails=0):
    result = CliRunner().invoke(main, ["artifacts", *map(str, args)])
    assert result.exit_code == fails, result.output
    return result.output


def test_ls_tells_of_each(states):
    said = run("ls", states[0])
    assert states[1].id in said
    assert "packed" in said
    entry = json.loads(run("ls", states[0], "--json"))[0]
    assert (entry["id"], entry["total"]) == (states[1].id, states[1].total)
    assert json.loads(run("ls", states[0], "-n", "team-z", "--json")) == []


def test_ls_says_why_one_is_not_believed(states):
    (states[0] / layout.manifest_key(states[1].id)).write_bytes(b"forged")
    assert "is not signed" in run("ls", states[0])


def test_show_tells_what_a_restore_must_match(states):
    said = run("show", states[0], states[1].id)
    for word in ("image digest", "sha256:abc", "highest pid", "312", "pages-1.img", "uids"):
        assert word in said
    assert json.loads(run("show", states[0], states[1].id, "--json"))["id"] == states[1].id


def test_show_of_none_is_a_sentence(states):
    said = run("show", states[0], "team-a/x", fails=1)
    assert "is no artifact; they are named" in said
    other = states[1].id.replace("00000001", "00000002")
    assert "is not in" in run("show", states[0], other, fails=1)


def test_verify_reads_back_and_fails_for_what_is_damaged(states):
    assert "whole" in run("verify", states[0], states[1].id)
    assert "names none" in run("verify", states[0], fails=1)
    pack = next((states[0] / layout.PACKS).glob("*/*"))
    data = bytearray(pack.read_bytes())
    data[1000] ^= 1
    pack.write_bytes(data)
    assert "not what was written" in run("verify", states[0], "--all", fails=1)
    said = json.loads(run("verify", states[0], "--all", "--json", fails=1))
    assert "not what was written" in said[states[1].id]


def test_rm_says_first_and_deletes_when_told_and_nothing_for_a_wrong_name(states):
    root, made = states
    manifest = root / layout.manifest_key(made.id)
    assert "say --yes" in run("rm", root, made.id)
    other = made.id.replace("00000001", "00000002")
    assert "is not in" in run("rm", root, made.id, other, "--yes", fails=1)
    assert manifest.exists()
    told = json.loads(run("rm", root, made.id, "--yes", "--json"))
    assert told == [{"id": made.id, "stored": made.stored, "deleted": True}]
    assert not manifest.exists()
    assert json.loads(run("ls", root, "--json")) == []


def test_rm_of_all_leaves_nothing_and_only_when_told(states):
    root, made = states
    gone = root / layout.manifest_key(made.id.replace("00000001", "00000002"))
    gone.parent.mkdir()
    gone.write_bytes(b"forged")
    before = sorted(root.rglob("*"))
    said = run("rm", root, "--all").splitlines()
    assert said[0].split() == ["NAMESPACE", "ARTIFACTS", "STORED", "NEWEST", "UNREADABLE"]
    assert said[1].split()[:2] == ["team-a", "2"]
    assert said[1].split()[-1] == "1"
    assert said[-1] == "Nothing was changed; say --yes to do it."
    assert sorted(root.rglob("*")) == before
    run("rm", root, made.id, "--force", fails=2)
    run("rm", root, made.id, "--all", "--yes", fails=2)
    run("rm", root, "--yes", fails=2)
    told = json.loads(run("rm", root, "--all", "--yes", "--json"))
    assert [(one["stored"], one["deleted"]) for one in told] == [(made.stored, True), (0, True)]
    assert not list(root.rglob("*"))
    assert "All of it is deleted" in run("rm", root, "--all", "--yes"), "also what is empty"


def test_rm_of_all_says_nothing_is_gone_of_a_folder_that_is_not_there(states):
    assert "is no folder that you may change" in run("rm", states[0] / "x", "--all", fails=1)


def test_what_a_disk_refuses_is_a_sentence(states, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("kybernate.checkpoint.gc.shutil.rmtree", refuse)
    said = run("rm", states[0], "--all", "--yes", fails=1)
    assert said.endswith("artifacts: Permission denied\n"), "it is not told as deleted"


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """One that the commands ask, in process; it is new, so that all claims are known."""
    made = Replica(url_of(tmp_path), Clock())
    made.controller("POST", "/v1/settle", {"why": "new"})

    class Client:
        def __init__(self, url, _tls, name):
            assert (url, name) == ("https://r:9446", "controller")

        def pod(self, namespace, uid):
            answer = made.controller("GET", f"/v1/pods/{namespace}/{uid}")
            if answer.status == 404:
                raise NotFoundError(answer.error)
            return wire.Pod.model_validate_json(json.dumps(answer.body))

    monkeypatch.setattr(client, "Registry", Client)
    monkeypatch.setenv("KYB_REGISTRY_URL", "https://r:9446")
    yield made
    made.close()


def runs(registry, made):
    """The pod whose state it is has a seat on n1, whose agent has recorded it; the pod's path."""
    pod = f"/v1/pods/team-a/{made.facts.pod_uid}"
    held = registry.agent("n1", "POST", f"{pod}/lease", {"seconds": 30}).body
    body = recording("n1", held["token"], pod_uid=made.facts.pod_uid)
    assert registry.agent("n1", "PUT", f"/v1/artifacts/{made.id}", body).status == 201
    return pod


def refused(root):
    """What `rm --all --yes` says that deletes nothing; the dry run says it, too."""
    before = sorted(root.rglob("*"))
    said = run("rm", root, "--all", "--yes", fails=1)
    assert "nothing was deleted" in said
    assert sorted(root.rglob("*")) == before
    (why,) = (line for line in said.splitlines() if line.startswith("pod team-a/"))
    assert why in run("rm", root, "--all").splitlines()
    return why


def test_rm_of_all_is_refused_while_the_registry_knows_who_needs_it(states, registry):
    root, made = states
    uid = made.facts.pod_uid
    pod = runs(registry, made)
    assert f"{uid}: it has a seat on node n1" in refused(root)
    assert registry.agent("n1", "POST", f"{pod}/stop", {"proof": "agent", "why": "x"}).status == 200
    claim = {"artifact": made.id, "successor": "after", "node": "n2"}
    assert registry.agent("n2", "POST", f"{pod}/claim", claim).status == 200
    assert f"after: it continues from {made.id} on node n2" in refused(root)
    gone = {"proof": "deleted", "why": "gone"}
    assert registry.controller("POST", "/v1/pods/team-a/after/stop", gone).status == 200
    run("rm", root, "--all", "--yes")
    assert not list(root.rglob("*"))


def test_rm_of_all_is_refused_while_nobody_can_say_whose_state_it_is(states, registry):
    """As where --keys lacks the authority of the nodes that signed it."""
    root, made = states
    (root / layout.manifest_key(made.id)).write_bytes(b"forged")
    before = sorted(root.rglob("*"))
    said = run("rm", root, "--all", "--yes", fails=1)
    assert f"{made.id}: it isn't believed (" in said
    assert "nothing was deleted" in said
    assert sorted(root.rglob("*")) == before
    run("rm", root, "--all", "--yes", "--force")
    assert not list(root.rglob("*"))


def test_rm_of_all_asks_a_registry_that_knows_nothing_of_them(states, registry):
    run("rm", states[0], "--all", "--yes")
    assert not list(states[0].rglob("*"))


def test_rm_of_all_is_refused_while_a_pod_continues_itself(states, registry):
    root, made = states
    uid = made.facts.pod_uid
    pod = runs(registry, made)
    registry.agent("n1", "POST", f"{pod}/stop", {"proof": "agent", "why": "moved"})
    claim = {"artifact": made.id, "successor": uid, "node": "n1"}
    assert registry.agent("n1", "POST", f"{pod}/claim", claim).status == 200
    assert f"{uid}: it continues from its own state on node n1" in refused(root)


def test_rm_of_all_is_refused_while_claims_may_be_unknown(states, registry):
    root, made = states
    gone = {"proof": "deleted", "why": "gone"}
    assert registry.controller("POST", f"{runs(registry, made)}/stop", gone).status == 200
    registry.pods.unsettle_all()
    assert "lost its database" in refused(root)
    run("rm", root, "--all", "--yes", "--force")
    assert not list(root.rglob("*"))


def test_rm_of_all_does_not_pass_over_a_registry_that_is_silent(states, registry, monkeypatch):
    def silent(*_):
        raise DeadlineError("no answer within 10 s")

    monkeypatch.setattr(client.Registry, "pod", silent)
    root, _ = states
    said = run("rm", root, "--all", "--yes", fails=1)
    assert "If that registry is gone, say --force" in said
    assert list(root.rglob("*"))
    run("rm", root, "--all", "--yes", "--force")
    assert not list(root.rglob("*"))


def test_gc_says_first_and_deletes_when_told(states):
    root, made = states
    vault.drop(place(root), made)
    old = time.time() - 3 * 86400
    pack = next((root / layout.PACKS).glob("*/*"))
    os.utime(pack, (old, old))
    assert "say --delete" in run("gc", root)
    assert not list((root / "condemned").glob("*/*"))
    run("gc", root, "--delete")
    mark = next((root / "condemned").glob("*/*"))
    os.utime(mark, (old, old))
    lease = next((root / "leases").glob("*/*"))
    lease.unlink()
    swept = json.loads(run("gc", root, "--delete", "--json"))
    assert swept["done"]
    assert swept["plans"]["team-a"]["delete"] == [pack.name]
    assert not pack.exists()


def test_an_export_is_imported_elsewhere(states, tmp_path, monkeypatch):
    root, made = states
    archive, transport = tmp_path / "x.tar", tmp_path / "transport.key"
    rates = []
    opened = artifacts.open_place
    monkeypatch.setattr(
        artifacts,
        "open_place",
        lambda url, rate=0.0: rates.append((url, rate)) or opened(url, rate=rate),
    )
    run("export", root, made.id, archive, "--transport-key", transport, "--rate", "1G")
    assert transport.stat().st_mode & 0o777 == 0o600
    artifactkeys.make_folder(tmp_path / "theirs", "there")
    monkeypatch.setenv("KYB_ARTIFACT_KEYS", str(tmp_path / "theirs"))
    trust, there = tmp_path / "keys" / "trust-here.pub", tmp_path / "there"
    got = run(
        *("import", archive, there, "--trust", trust, "--transport-key", transport),
        *("-n", "team-z", "--rate", "2G"),
    ).strip()
    assert rates == [(str(root), 1e9), (str(there), 2e9)]
    keys = artifactkeys.read_folder(tmp_path / "theirs")
    assert got.startswith("team-z/llama-0@")
    assert fetched(place(there), got, tmp_path / "back", keys) == contents(tmp_path / "dump")
    own = tmp_path / "theirs" / "trust-there.pub"
    said = run(*("import", archive, there, "--trust", own, "--transport-key", transport), fails=1)
    assert "not trusted here" in said


def test_an_export_may_be_a_folder(states, tmp_path):
    out = f"{tmp_path / 'export'}/"
    run("export", states[0], states[1].id, out, "--transport-key", tmp_path / "t.key")
    said = run(
        "export", states[0], states[1].id, out, "--transport-key", tmp_path / "t.key", fails=1
    )
    assert "holds an export already" in said


def test_an_export_that_fails_leaves_no_file(states, tmp_path):
    pack = next((states[0] / layout.PACKS).glob("*/*"))
    os.truncate(pack, 100)
    out = tmp_path / "x.tar"
    run("export", states[0], states[1].id, out, "--transport-key", tmp_path / "t.key", fails=1)
    assert not list(tmp_path.glob("x.tar*"))


def test_keys_are_made_once_and_printed_as_a_secret(tmp_path):
    assert "sign.key: made" in run("keys", "--dir", tmp_path / "k", "--name", "here")
    assert "nothing was missing" in run("keys", "--dir", tmp_path / "k", "--name", "here")
    for name in ("ca.crt", "agents-ca.crt"):
        (tmp_path / "k" / name).write_text("who has certified nodes")
    printed = run("keys", "--dir", tmp_path / "k", "--name", "here", "--secret")
    data = {one["metadata"]["name"]: one["data"] for one in yaml.safe_load_all(printed)}
    assert {name: sorted(files) for name, files in data.items()} == {
        "kyb-artifact-keys": ["trust-here.pub"],
        "kyb-artifact-trust": ["agents-ca.crt", "ca.crt", "trust-here.pub"],
        "kyb-wrap-keys": ["wrap-1.key"],
    }
    wraps = base64.b64decode(data["kyb-wrap-keys"]["wrap-1.key"])
    assert wraps == (tmp_path / "k/wrap-1.key").read_bytes()
    done = CliRunner().invoke(main, ["artifacts", "keys", "--dir", str(tmp_path / "z"), "--secret"])
    assert "wrap-1.key: made" in done.stderr, "who mistyped the folder is told"
    assert len(list(yaml.safe_load_all(done.stdout))) == 3
    shared = next(yaml.safe_load_all(run("keys", "--dir", tmp_path / "k", "--secret", "--shared")))
    assert sorted(shared["data"]) == [
        "sign.key",
        "trust-cluster.pub",
        "trust-here.pub",
        "wrap-1.key",
    ]


@pytest.mark.parametrize("place_url", ["here", "ftp://x", ""])
def test_a_place_that_is_none_is_a_sentence(states, place_url):
    assert "Error: place:" in run("ls", place_url, fails=1)


def test_without_keys_it_says_which(tmp_path, monkeypatch):
    monkeypatch.delenv("KYB_ARTIFACT_KEYS", raising=False)
    assert "Missing option '--keys'" in run("ls", tmp_path, fails=2)
    assert "can't be read" in run("ls", tmp_path, "--keys", tmp_path / "none", fails=1)
