"""The vault of a node: its places, and which copies may go."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.adapters.keys import artifactkeys
from kybernate.checkpoint import catalogue, gc
from kybernate.checkpoint.places import time_of
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.into import Into
from kybernate.core.artifacts.manifest import content
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    LockedError,
    NotFoundError,
    RefusedError,
    UnfitError,
)
from kybernate.types import PodUid, Tier

from .kit import FACTS, KEYS, NOW, contents, make_dump, place

UID = PodUid("5e1f")
INTO = Into("team-a", UID)


@pytest.fixture
def vault(tmp_path):
    places = {tier: place(tmp_path / tier) for tier in (Tier.RAM, Tier.OBJECT)}
    return Vault(places, Tier.RAM, KEYS, now=lambda: NOW)


async def sealed(vault, seed=1):
    images = make_dump(await vault.begin(UID), seed)
    before = contents(images)
    return await vault.seal(images, FACTS, 60), before


def run(work):
    return asyncio.run(work)


class TestSeal:
    def test_a_dump_becomes_an_artifact_that_is_there_raw(self, vault):
        async def story():
            artifact, before = await sealed(vault)
            assert artifact.startswith("team-a/llama-0@20260131T120000Z-")
            assert contents(await vault.images(artifact, 60, INTO)) == before
            (entry,) = await vault.ls(Tier.RAM)
            total = sum(map(len, before.values()))
            assert (entry.id, entry.uid, entry.size, entry.verified) == (artifact, UID, total, True)

        run(story())

    def test_of_two_states_of_one_second_the_later_one_is_the_newest(self, tmp_path):
        moments = [NOW.replace(microsecond=at) for at in (0, 1, 250_000, 999_998, 999_999)]
        places = {Tier.RAM: place(tmp_path / "ram")}

        async def story():
            names = []
            for now in moments:
                vault = Vault(places, Tier.RAM, KEYS, now=lambda now=now: now)
                names.append((await sealed(vault))[0])
                vault.close()
            assert sorted(names) == names

        run(story())

    def test_a_pod_may_be_called_images(self, vault):
        async def story():
            images = make_dump(await vault.begin(UID))
            artifact = await vault.seal(images, {**FACTS, "pod": "images"}, 60)
            assert [one.id for one in await vault.ls(Tier.RAM)] == [artifact]

        run(story())

    def test_begin_forgets_what_nobody_sealed(self, vault):
        async def story():
            first = await vault.begin(UID)
            (first / "half").write_bytes(b"x")
            again = await vault.begin(UID)
            assert again == first
            assert not list(again.iterdir())
            assert again.stat().st_mode & 0o777 == 0o700
            await vault.abandon(UID)
            await vault.abandon(UID)
            assert not first.exists()

        run(story())

    def test_what_is_removed_is_left_by_who_writes_there_first(self, tmp_path):
        there = []

        async def left(images):
            there.append(images.exists())

        vault = Vault({Tier.NVME: place(tmp_path / "n")}, Tier.NVME, KEYS, left=left)

        async def story():
            images = await vault.begin(UID)
            await vault.begin(UID)
            await vault.abandon(UID)
            assert not images.exists()

        run(story())
        assert there == [False, True, True]

    @pytest.mark.parametrize("uid", ["../../etc", "", ".", "a/b"])
    def test_a_uid_that_is_a_path_is_refused(self, vault, uid):
        with pytest.raises(RefusedError, match="is no UID"):
            run(vault.begin(PodUid(uid)))

    def test_facts_that_are_wrong_are_named_and_the_dump_stays(self, vault):
        async def story():
            images = make_dump(await vault.begin(UID))
            with pytest.raises(CorruptError, match="facts: driver must be a text"):
                await vault.seal(images, {**FACTS, "driver": 5}, 60)
            assert contents(images)

        run(story())

    def test_without_a_signing_key_nothing_is_sealed_and_the_dump_stays(self, tmp_path):
        keys = artifactkeys.ArtifactKeys(None, KEYS.trusted)
        vault = Vault({Tier.NVME: place(tmp_path / "nvme")}, Tier.NVME, keys)

        async def story():
            images = make_dump(await vault.begin(UID))
            before = contents(images)
            with pytest.raises(Exception, match=r"no sign\.key"):
                await vault.seal(images, FACTS, 60)
            assert contents(images) == before
            assert await vault.ls(Tier.NVME) == ()

        run(story())

    def test_an_empty_dump_is_refused(self, vault):
        async def story():
            with pytest.raises(NotFoundError, match="holds no dump"):
                await vault.seal(await vault.begin(UID), FACTS, 60)

        run(story())

    def test_raw_bytes_that_changed_are_not_restored_from(self, vault, tmp_path):
        async def story():
            artifact, _ = await sealed(vault)
            images = await vault.images(artifact, 60, INTO)
            data = bytearray((images / "pages-1.img").read_bytes())
            data[1_500_000] ^= 1
            (images / "pages-1.img").write_bytes(data)
            with pytest.raises(CorruptError, match=r"pages-1\.img: piece 1"):
                await vault.images(artifact, 60, INTO)
            with pytest.raises(CorruptError):
                await vault.pack(artifact, Tier.OBJECT, 60)
            assert not (await vault.ls(Tier.RAM))[0].verified
            assert await vault.ls(Tier.OBJECT) == ()

        run(story())


class TestPlaces:
    def test_a_state_goes_down_and_comes_back(self, vault, tmp_path):
        async def story():
            artifact, before = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            await vault.pack(artifact, Tier.OBJECT, 60)
            await vault.verify(artifact, Tier.OBJECT, 60)
            await vault.drop(artifact, Tier.RAM)
            assert await vault.ls(Tier.RAM) == ()
            assert not list((tmp_path / "ram" / "artifacts").iterdir())
            told = []
            await vault.fetch(artifact, tmp_path / "back", 60, INTO, told.append)
            assert contents(tmp_path / "back") == before
            assert told == sorted(told)
            assert told[-1] == sum(len(one) for one in before.values())

        run(story())

    def test_a_raw_copy_is_fetched_too_and_goes_on(self, vault, tmp_path):
        async def story():
            artifact, before = await sealed(vault)
            back = tmp_path / "back"
            back.mkdir()
            (back / "pages-1.img").write_bytes(b"torn" * 1000)
            await vault.fetch(artifact, back, 60, INTO)
            assert contents(back) == before

        run(story())

    def test_the_last_verified_copy_is_kept_unless_told_why(self, vault):
        async def story():
            artifact, _ = await sealed(vault)
            with pytest.raises(RefusedError, match="last verified"):
                await vault.drop(artifact, Tier.RAM)
            await vault.drop(artifact, Tier.RAM, forget="its pod was deleted")
            await vault.drop(artifact, Tier.RAM)
            assert await vault.ls(Tier.RAM) == ()

        run(story())

    @pytest.mark.parametrize("tier", [Tier.RAM, Tier.OBJECT])
    def test_one_whose_manifest_is_damaged_goes_if_nobody_needs_it(self, vault, tmp_path, tier):
        async def story():
            artifact, _ = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            manifest = tmp_path / tier / layout.manifest_key(artifact)
            manifest.write_bytes(manifest.read_bytes()[:-1])
            with pytest.raises((CorruptError, RefusedError)):
                await vault.drop(artifact, tier)
            await vault.drop(artifact, tier, forget="its workload has continued since")
            assert await vault.ls(tier) == ()
            assert not list((tmp_path / tier / layout.folder(artifact)).glob("**/*"))

        run(story())

    def test_a_copy_that_lost_a_pack_is_no_copy(self, vault, tmp_path):
        async def story():
            artifact, _ = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            for pack in (tmp_path / "object" / layout.PACKS).glob("*/*"):
                pack.unlink()
            with pytest.raises(RefusedError, match="not verified"):
                await vault.drop(artifact, Tier.RAM)

        run(story())

    def test_a_copy_that_failed_to_verify_is_asked_last_and_counts_for_nothing(
        self, vault, tmp_path
    ):
        async def story():
            artifact, before = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            images = await vault.images(artifact, 60, INTO)
            (images / "core-1.img").write_bytes(b"y" * 700)
            await vault.fetch(artifact, tmp_path / "back", 60, INTO)
            assert contents(tmp_path / "back") == before
            with pytest.raises(RefusedError, match="last verified"):
                await vault.drop(artifact, Tier.OBJECT)
            await vault.drop(artifact, Tier.RAM)

        run(story())

    def test_what_is_nowhere_is_not_found(self, vault, tmp_path):
        artifact = "team-a/llama-0@20260131T120000Z-00c0ffee"
        with pytest.raises(NotFoundError):
            run(vault.fetch(artifact, tmp_path / "back", 60, INTO))
        with pytest.raises(NotFoundError):
            run(vault.pack(artifact, Tier.OBJECT, 60))
        with pytest.raises(NotFoundError):
            run(vault.verify(artifact, Tier.RAM, 60))
        with pytest.raises(RefusedError, match="no place nvme"):
            run(vault.ls(Tier.NVME))

    def test_of_a_manifest_that_is_not_believed_the_reason_is_told(self, vault, tmp_path):
        async def story():
            artifact, _ = await sealed(vault)
            (tmp_path / "ram" / layout.manifest_key(artifact)).write_bytes(b"forged")
            with pytest.raises(RefusedError, match="is not signed"):
                await vault.fetch(artifact, tmp_path / "back", 60, INTO)
            with pytest.raises(RefusedError, match="is not signed"):
                await vault.pack(artifact, Tier.OBJECT, 60)

        run(story())

    def test_a_deadline_that_passes_ends_the_call_and_keeps_the_rest(self, vault, tmp_path):
        async def story():
            artifact, before = await sealed(vault)
            with pytest.raises(DeadlineError):
                await vault.pack(artifact, Tier.OBJECT, 0.0)
            await vault.pack(artifact, Tier.OBJECT, 60)
            await vault.fetch(artifact, tmp_path / "back", 60, INTO)
            assert contents(tmp_path / "back") == before

        run(story())


def test_the_catalogue_tells_of_all_and_of_what_is_not_believed(vault, tmp_path):
    async def story():
        first, _ = await sealed(vault, 1)
        second, _ = await sealed(vault, 2)
        bad = tmp_path / "ram" / layout.manifest_key(second)
        bad.write_bytes(b"forged")
        found = {f.id: f for f in catalogue.manifests(place(tmp_path / "ram"), KEYS)}
        assert found[first].manifest.facts.pod == "llama-0"
        assert found[second].manifest is None
        assert "is not signed" in found[second].problem

    run(story())


def test_what_a_newer_release_wrote_is_kept_for_it(vault, tmp_path):
    """No agent of before takes it for damaged, drops it, or sweeps what it may need."""

    async def story():
        artifact, before = await sealed(vault)
        await vault.pack(artifact, Tier.OBJECT, 60)
        packs = {path.name for path in (tmp_path / "object" / "packs").rglob("*") if path.is_file()}
        manifest = tmp_path / "object" / layout.manifest_key(artifact)
        ours = manifest.read_bytes()
        body, _ = KEYS.opened(ours, "a manifest")
        newer = KEYS.sign(body.replace(b'"version":1', b'"files_of":[],"version":2'))
        manifest.write_bytes(newer)
        await vault.drop(artifact, Tier.RAM, forget="a test")
        for attempt in (
            vault.fetch(artifact, tmp_path / "back", 60, INTO),
            vault.drop(artifact, Tier.OBJECT),
            vault.drop(artifact, Tier.OBJECT, forget="a test"),
        ):
            with pytest.raises(UnfitError, match=r"has version 2, .*it is kept"):
                await attempt
        (entry,) = await vault.ls(Tier.OBJECT)
        assert (entry.id, entry.verified) == (artifact, False)
        where = place(tmp_path / "object")
        for days in (2, 4, 6):
            swept = gc.sweep(
                where, KEYS, dry_run=False, clock=lambda at, d=days: time_of(at) + d * 86400
            )
            assert "newer" in swept.held["team-a"]
        assert manifest.read_bytes() == newer
        manifest.write_bytes(ours)
        await vault.fetch(artifact, tmp_path / "back", 60, INTO)
        assert contents(tmp_path / "back") == before
        assert packs <= {p.name for p in (tmp_path / "object" / "packs").rglob("*")}

    run(story())


class Signs:
    """A node's signature, as far as a vault cares: whose it is is written in front."""

    def __init__(self, node):
        self.node = node

    def sign(self, body):
        return f"by {self.node}\n".encode() + body

    def opened(self, signed, what):
        line, _, body = signed.partition(b"\n")
        return (body, line.decode().removeprefix("by ")) if line.startswith(b"by ") else None


def test_a_state_whose_wrapping_key_is_missing_is_kept(tmp_path):
    """Its seat gives up what is refused, and tries again what is locked."""

    def vault_of(keys):
        places = {Tier.RAM: place(tmp_path / "ram"), Tier.OBJECT: place(tmp_path / "object")}
        return Vault(places, Tier.RAM, keys, now=lambda: NOW)

    async def story():
        whole, lacking = vault_of(KEYS), vault_of(replace(KEYS, kms=artifactkeys.generated().kms))
        artifact, before = await sealed(whole)
        await whole.pack(artifact, Tier.OBJECT, 60)
        await whole.drop(artifact, Tier.RAM)
        with pytest.raises(LockedError, match="put it back"):
            await lacking.fetch(artifact, tmp_path / "back", 60, INTO)
        await whole.fetch(artifact, tmp_path / "back", 60, INTO)
        assert contents(tmp_path / "back") == before

    run(story())


class TestWhoIsBelieved:
    """Of what another node signed, the registry says whether that one wrote it."""

    @pytest.fixture
    def make(self, tmp_path):
        """A vault of this node over the same object store."""

        def made(node, witness=None, **more):
            places = {
                Tier.RAM: place(tmp_path / node),
                Tier.OBJECT: place(tmp_path / "object"),
            }
            keys = replace(KEYS, **{"signer": None, "nodes": Signs(node), **more}, witness=witness)
            return Vault(places, Tier.RAM, keys, now=lambda: NOW)

        return made

    def test_a_nodes_own_word_needs_nobodys(self, make, tmp_path):
        def ask(_manifest):
            raise AssertionError("nobody is asked")

        async def story():
            vault = make("a", ask)
            artifact, before = await sealed(vault)
            await vault.pack(artifact, Tier.OBJECT, 60)
            assert (await vault.manifest(artifact, 60)).node == "a"
            assert contents(await vault.images(artifact, 60, INTO)) == before
            await vault.drop(artifact, Tier.RAM)
            await vault.fetch(artifact, tmp_path / "back", 60, INTO)
            assert contents(tmp_path / "back") == before

        run(story())

    def test_anothers_is_asked_about_once(self, make, tmp_path):
        asked = []

        async def story():
            a, b = make("a"), make("b", asked.append)
            artifact, before = await sealed(a)
            await a.pack(artifact, Tier.OBJECT, 60)
            for _ in range(2):
                await b.fetch(artifact, tmp_path / "back", 60, INTO)
            assert contents(tmp_path / "back") == before
            assert [(one.id, one.node) for one in asked] == [(artifact, "a")]

        run(story())

    def test_its_files_are_those_that_were_recorded(self, make, tmp_path):
        async def story():
            a, b = make("a"), make("b", lambda _: "0" * 64)
            artifact, _ = await sealed(a)
            right = content((await a.manifest(artifact, 60)).files)
            await a.pack(artifact, Tier.OBJECT, 60)
            for call in (b.admit(artifact, INTO, 60), b.fetch(artifact, tmp_path / "x", 60, INTO)):
                with pytest.raises(RefusedError, match="recorded when it was saved"):
                    await call
            await make("c", lambda _: right).fetch(artifact, tmp_path / "back", 60, INTO)

        run(story())

    def test_who_is_not_believed_is_refused_however_it_is_read(self, make, tmp_path):
        def refuse(_manifest):
            raise RefusedError("that node had no lease")

        async def story():
            a, b = make("a"), make("b", refuse)
            artifact, _ = await sealed(a)
            await a.pack(artifact, Tier.OBJECT, 60)
            for call in (b.admit(artifact, INTO, 60), b.fetch(artifact, tmp_path / "x", 60, INTO)):
                with pytest.raises(RefusedError, match="had no lease"):
                    await call
            assert not (tmp_path / "x").exists()

        run(story())

    def test_without_a_registry_only_its_own_node_restores_it(self, make, tmp_path):
        async def story():
            a = make("a")
            artifact, _ = await sealed(a)
            await a.pack(artifact, Tier.OBJECT, 60)
            with pytest.raises(RefusedError, match=r"without a registry .* only that node"):
                await make("b").fetch(artifact, tmp_path / "back", 60, INTO)

        run(story())

    def test_a_seat_that_is_parked_on_it_asks_nobody_again(self, make, tmp_path):
        """It was asked when the seat took it over; a registry that is away holds no wake up."""

        async def story():
            a, b = make("a"), make("b")
            artifact, _ = await sealed(a)
            await a.pack(artifact, Tier.OBJECT, 60)
            parked = Into("team-a", PodUid("successor"), None, parked=True)
            with pytest.raises(RefusedError, match="is the state of pod"):
                await b.fetch(artifact, tmp_path / "back", 60, parked)
            own = replace(INTO, parked=True)
            with pytest.raises(RefusedError, match="without a registry"):
                await b.fetch(artifact, tmp_path / "back", 60, own)

        run(story())

    def test_a_shared_keys_word_is_believed_where_that_is_trusted(self, make, tmp_path):
        async def story():
            a, b = make("a", signer=KEYS.signer), make("b")
            artifact, before = await sealed(a)
            await a.pack(artifact, Tier.OBJECT, 60)
            await b.fetch(artifact, tmp_path / "back", 60, INTO)
            assert contents(tmp_path / "back") == before
            c = make("c", trusted={})
            with pytest.raises(LockedError, match="is not trusted here"):
                await c.fetch(artifact, tmp_path / "c", 60, INTO)
            # It lies there still, for whoever puts the key back.
            await b.fetch(artifact, tmp_path / "again", 60, INTO)

        run(story())

    def test_who_signs_under_another_nodes_name_is_refused(self, make, tmp_path):
        async def story():
            a, b = make("a"), make("b", lambda _manifest: None)
            artifact, _ = await sealed(a)
            await a.pack(artifact, Tier.OBJECT, 60)
            path = tmp_path / "object" / layout.manifest_key(artifact)
            for line in (b"by c\n", b""):
                body = path.read_bytes().partition(b"\n")[2]
                signed = line + body if line else KEYS.sign(body)
                path.write_bytes(signed)
                with pytest.raises(RefusedError, match="says that it is by node a"):
                    await b.fetch(artifact, tmp_path / "back", 60, INTO)

        run(story())
