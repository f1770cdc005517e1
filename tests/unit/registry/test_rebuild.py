"""A database made anew from the manifests of all places is the lost one, but for what is safe."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kybernate.adapters.keys import artifactkeys
from kybernate.core.nodeaccess import Access, why_not
from registry import __main__
from registry import rebuild as rebuilding
from registry.artifacts import Artifacts
from registry.commands import COMMANDS, rebuild_command, settle_command, unsettle_command
from registry.rebuild import Outcome, rebuild
from tests.unit.registry import saved as saving
from tests.unit.registry.replica import Clock, Replica, pod, url_of
from tests.unit.registry.saved import KEYS, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kybernate.core.artifacts.manifest import Manifest

OWN = ("recorded_ms", "told_ms")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture
def saved(world: World, replica: Replica) -> list[Manifest]:
    """Seven states of two pods: all on a node, some in the store, some on the other node too."""
    made = []
    tokens = {
        "llama-0": replica.token("n1", "uid-llama-0"),
        "qwen": replica.token("n2", "uid-qwen"),
    }
    for number in range(7):
        pod_name, node, other = ("llama-0", "n1", "n2") if number % 2 else ("qwen", "n2", "n1")
        manifest = world.save(node, number, pod_name)
        world.tell(replica, node, manifest, tokens[pod_name])
        for to in ([""] if number % 3 == 0 else []) + ([other] if number == 5 else []):
            packed = world.copy(manifest, node, to)
            world.tell_copy(replica, to or node, packed, to)
        made.append(manifest)
    return made


@pytest.fixture
def fresh(tmp_path: Path, clock: Clock) -> Iterator[Replica]:
    """A registry whose database is new, and not said to be complete."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    made = Replica(url_of(folder), clock)
    yield made
    made.close()


def content(replica: Replica) -> list[Any]:
    """Everything that both databases can know."""
    items = replica.proxy("/v1/artifacts?limit=500").body["items"]
    full = [replica.proxy(f"/v1/artifacts/{item['id']}").body for item in items]
    for one in itertools.chain(full, *(entry["copies"] for entry in full)):
        for name in OWN:
            one.pop(name, None)
    return full


def rebuilt(world: World, fresh: Replica) -> list[Outcome]:
    return [rebuild(fresh.database, spot, world.catalogue(spot)) for spot in world.places]


@pytest.mark.usefixtures("saved")
def test_a_rebuilt_database_is_the_lost_one(world: World, replica: Replica, fresh: Replica) -> None:
    done = rebuilt(world, fresh)
    assert [one.new for one in done] == [3, 5, 3]
    assert content(fresh) == content(replica)
    assert len(content(fresh)) == 7
    again = rebuilt(world, fresh)
    assert [(one.new, one.there) for one in again] == [(0, 3), (0, 5), (0, 3)]


class CutError(Exception):
    """The rebuild was ended here."""


def cut(catalogue: Any, after: int) -> Callable[[Callable[[str], bool]], Iterable[Any]]:
    def read(skip: Callable[[str], bool]) -> Iterable[Any]:
        for number, found in enumerate(catalogue(skip)):
            if number == after:
                raise CutError
            yield found

    return read


@pytest.mark.usefixtures("saved")
def test_a_rebuild_that_is_cut_short_goes_on(
    world: World, replica: Replica, fresh: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilding, "BATCH", 2)
    spot = next(iter(world.places))
    with pytest.raises(CutError):
        rebuild(fresh.database, spot, cut(world.catalogue(spot), 2))
    assert len(content(fresh)) == 2
    done = rebuilt(world, fresh)
    assert (done[0].new, done[0].there) == (1, 2)
    assert content(fresh) == content(replica)


@pytest.mark.usefixtures("saved")
def test_what_a_rebuild_cannot_know_is_made_safe(
    world: World, replica: Replica, fresh: Replica, clock: Clock
) -> None:
    """A successor runs; the database is lost; nobody else may become one."""
    newest = replica.proxy("/v1/latest?namespace=ns&pod=llama-0").body["id"].partition("/")[2]
    token = replica.proxy(pod("uid-llama-0")).body["token"]
    replica.stop("n1", "uid-llama-0")
    assert replica.claim("n2", "uid-llama-0", newest, "heir").status == 200
    clock.now += 60_000
    rebuilt(world, fresh)
    # The old writer, who knows nothing of all this, says again what it said.
    assert fresh.token("n1", "uid-llama-0") > token
    assert fresh.stop("n1", "uid-llama-0").status == 200
    refused = fresh.claim("n1", "uid-llama-0", newest, "second")
    assert (refused.status, "claims again" in refused.error) == (409, True)
    assert fresh.claim("n2", "uid-llama-0", newest, "heir", again=True).status == 200
    assert fresh.controller("POST", "/v1/settle", {"why": "all agents told theirs"}).status == 200
    assert fresh.claim("n1", "uid-llama-0", newest, "second").status == 409


def test_no_copy_is_dropped_on_account_of_one_that_was_only_found(
    world: World, replica: Replica, fresh: Replica, saved: list[Manifest]
) -> None:
    both = saved[3]
    name = both.id.partition("/")[2]
    rebuilt(world, fresh)
    assert fresh.proxy(f"/v1/latest?namespace=ns&pod={both.facts.pod}").status == 200
    assert fresh.drop("n1", name).status == 409
    world.tell_copy(fresh, "n1", both, "")
    assert fresh.drop("n1", name).status == 200


@pytest.mark.usefixtures("saved")
def test_manifests_that_are_not_believed_are_left_out(
    world: World, fresh: Replica, tmp_path: Path
) -> None:
    (forged, torn) = sorted((tmp_path / "world" / "n1").rglob("manifest"))[:2]
    forged.write_bytes(forged.read_bytes().replace(b"llama", b"lllll"))
    torn.write_bytes(torn.read_bytes()[:100])
    first = rebuilt(world, fresh)[0]
    assert (first.new, len(first.problems)) == (1, 2)


def test_two_artifacts_of_one_name_are_not_mixed(
    world: World, fresh: Replica, saved: list[Manifest]
) -> None:
    other = World(world.folder / "other")
    other.save("n1", 1, "llama-0")
    foreign = other.save("n1", 100, "llama-0")
    rebuilt(world, fresh)
    before = content(fresh)

    def disguised(_skip: Callable[[str], bool]) -> Iterable[Any]:
        for found in other.catalogue(other.spot("n1"))(lambda id_: id_ != foreign.id):
            yield type(found)(saved[1].id, found.manifest)

    done = rebuild(fresh.database, other.spot("n2"), disguised)
    assert (done.new, "another artifact" in done.problems[0]) == (0, True)
    assert content(fresh) == before


def write_keys(folder: Path) -> None:
    folder.mkdir()
    (public,) = KEYS.trusted.values()
    (folder / "trust-here.pub").write_bytes(artifactkeys.public_pem(public))


@pytest.mark.usefixtures("saved")
def test_by_command(
    world: World, replica: Replica, fresh: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KYB_REGISTRY_DATABASE", url_of(tmp_path / "fresh"))
    write_keys(tmp_path / "keys")
    run = CliRunner().invoke
    keys, place = ["--keys", str(tmp_path / "keys")], f"nvme={world.folder / 'n1'}"
    done = run(rebuild_command, [*keys, "--place", place, "--node", "n1"])
    assert (done.exit_code, "3 artifacts taken in" in done.output) == (0, True), done.output
    run(rebuild_command, [*keys, "--place", f"nvme={world.folder / 'n2'}", "--node", "n2"])
    wanted = {one["id"] for one in content(replica)}
    assert {one["id"] for one in content(fresh)} == wanted
    assert not fresh.pods.settled()
    settled = run(settle_command, ["--why", "looked at all pods"])
    assert (settled.exit_code, "2 pods" in settled.output) == (0, True)
    assert fresh.pods.settled()
    assert "2 pods can't be claimed" in run(unsettle_command).output
    assert not fresh.pods.settled()
    assert not fresh.pods.get(("ns", "uid-qwen")).settled


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_each_command_is_reached_by_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(COMMANDS) == set(__main__._OTHERS)
    monkeypatch.setattr(sys, "argv", ["kyb-registry", *filter(None, [name]), "--help"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert f"kyb-registry {name}".strip() in capsys.readouterr().out


@pytest.mark.parametrize("place", ["x", "tape=/x", "nvme=/x", "object="])
def test_a_wrong_place_is_told(place: str) -> None:
    done = CliRunner().invoke(rebuild_command, ["--place", place])
    assert (done.exit_code, "TIER=URL" in done.output) == (2, True)


class Signs:
    """What a node signs: its name is written in front."""

    def __init__(self, node: str) -> None:
        self.node = node

    def sign(self, body: bytes) -> bytes:
        return f"by {self.node}\n".encode() + body

    def opened(self, signed: bytes, what: str) -> tuple[bytes, str] | None:
        line, _, body = signed.partition(b"\n")
        return (body, line.decode()[3:]) if line.startswith(b"by ") else None


def test_which_node_signed_a_state_is_known_again(
    world: World, fresh: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what a shared key signed nobody is; nor with which token it was, since those are lost."""
    shared = world.save("n1", 1)
    monkeypatch.setattr(saving, "KEYS", replace(KEYS, signer=None, nodes=Signs("n1")))
    own = world.save("n1", 2)
    world.copy(own, "n1", "")
    rebuilt(world, fresh)
    for made, nodes in ((own, ["n1"]), (shared, [])):
        found = fresh.proxy(f"/v1/artifacts/{made.id}/signers").body
        assert (found["nodes"], found["token"]) == (nodes, 0)


def test_of_a_node_that_was_ever_revoked_a_manifest_alone_proves_nothing(
    world: World, fresh: Replica, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "KEYS", replace(KEYS, signer=None, nodes=Signs("n1")))
    own = world.save("n1", 1)
    world.copy(own, "n1", "")
    rebuilt(world, fresh)

    def signers(known: dict[str, Access]) -> object:
        judged = Artifacts(fresh.database, lambda node, at: not why_not(known, node, at))
        return judged.signers(own.id)["nodes"]

    assert signers({}) == ["n1"]
    assert signers({"n1": Access(revoked=False, at_ms=clock.now - 3_600_000)}) == []
