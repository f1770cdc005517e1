"""Who may restore what where, what may be dropped, what a sweep deletes, how fast bytes pass."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.artifacts import layout
from kybernate.core.artifacts.grants import Grant, no_grants, why_not
from kybernate.core.artifacts.into import Container, Into, why_refused
from kybernate.core.artifacts.match import Target, mismatches
from kybernate.core.artifacts.misfits import Misfit, refusal
from kybernate.core.artifacts.placed import why_keep
from kybernate.core.artifacts.privileges import Mount, Privileges, beyond
from kybernate.core.chunks.leaf import Chunk, zeros
from kybernate.core.chunks.pace import Pace
from kybernate.core.chunks.ranges import GAP, LARGEST, Placed, jobs, ranges
from kybernate.core.chunks.sweep import SKEW, Lease, Seen, plan
from kybernate.errors import RefusedError, RetryableError
from kybernate.types import PodUid

from .test_manifest import FACTS, PRIVILEGES, RAW

ID = "team-a/llama-0@20260131T120000Z-00c0ffee"
TARGET = Target(
    *("sha256:abc", "9f2c", "6.18.9", "4.2.1", "x86_64"),
    *("NVIDIA H100", 1, "580.95.05", "13.0"),
)


class TestNames:
    def test_an_id_is_host_port_and_found_again(self):
        made = layout.make_id("team-a", "llama-0", datetime(2026, 1, 31, 12, tzinfo=UTC), 0xC0FFEE)
        assert made == ID
        assert layout.parse_id(ID) == layout.Parts("team-a", "llama-0", "20260131T120000Z-00c0ffee")
        assert layout.id_of(layout.manifest_key(ID)) == ID

    @pytest.mark.parametrize(
        "text",
        ["", "a/b", "a/../b@20260131T120000Z-00c0ffee", "A/b@20260131T120000Z-00c0ffee", ID + "\n",
         "a/b/c@20260131T120000Z-00c0ffee", "a/b@20260131T120000Z-00C0FFEE",
         f"a/{'b' * 254}@20260131T120000Z-00c0ffee"],
    )  # fmt: skip
    def test_what_is_no_id_is_refused(self, text):
        with pytest.raises(RefusedError, match="is no artifact"):
            layout.parse_id(text)

    @given(st.text(max_size=30))
    def test_any_key_is_a_manifest_or_not(self, key):
        found = layout.id_of(layout.ARTIFACTS + key)
        assert found is None or layout.manifest_key(found) == layout.ARTIFACTS + key


class TestNamespaces:
    """One that was deleted and made again is another, whatever it is called."""

    @pytest.mark.parametrize(
        ("saved", "now", "refused"),
        [("u1", "u1", False), ("u1", "u2", True), ("", "u2", False), ("u1", "", False)],
    )
    def test_what_an_earlier_one_saved_is_not_restored(self, saved, now, refused):
        container = Container(TARGET, PRIVILEGES)
        made = replace(RAW, facts=replace(FACTS, namespace_uid=saved))
        into = Into("team-a", PodUid("another"), container, namespace_uid=now)
        against = why_refused(made, into, 0.0)
        assert [one.misfit for one in against] == [Misfit.NAMESPACE] * refused
        assert all("that was deleted (UID u1)" in one.sentence for one in against)


class TestMatch:
    def test_the_same_machine_fits(self):
        assert mismatches(FACTS, TARGET) == ()

    @pytest.mark.parametrize(
        ("field", "value", "misfit", "said"),
        [
            ("image_digest", "sha256:def", Misfit.IMAGE, "Pin the pod's image"),
            ("spec_hash", "0000", Misfit.SPEC, "specified otherwise"),
            ("architecture", "aarch64", Misfit.ARCHITECTURE, "this node is aarch64"),
            ("kernel", "6.19.0", Misfit.KERNEL, "this node runs 6.19.0"),
            ("criu", "4.1.9", Misfit.CRIU, "can't read it"),
            ("criu", "5.0", Misfit.CRIU, "can't read it"),
            ("gpu_product", "NVIDIA A100", Misfit.GPUS, "this node has NVIDIA A100"),
            ("gpu_count", 2, Misfit.GPUS, "the seat has 2"),
            ("driver", "570.1", Misfit.DRIVER, "on driver 580.95.05"),
            ("cuda", "12.8", Misfit.DRIVER, "on CUDA 13.0"),
        ],
    )
    def test_each_difference_has_a_reason_and_a_remedy(self, field, value, misfit, said):
        (against,) = mismatches(FACTS, replace(TARGET, **{field: value}))
        assert against.misfit is misfit
        assert said in against.sentence
        assert against.sentence.endswith(misfit.remedy)

    def test_an_error_tells_all_of_it_and_each_reason_once(self):
        error = refusal(mismatches(FACTS, replace(TARGET, driver="570.1", cuda="12.8", kernel="7")))
        assert error.reasons == ("kernel", "driver")
        assert all(word in str(error) for word in ("CUDA", "580.95.05", "kernel", "this node"))

    def test_without_gpus_driver_and_product_mean_nothing(self):
        facts = replace(FACTS, gpu_count=0)
        assert mismatches(facts, replace(TARGET, gpu_count=0, driver="", gpu_product="")) == ()

    def test_a_newer_criu_reads_older_images(self):
        assert mismatches(FACTS, replace(TARGET, criu="4.3")) == ()


OWN = Privileges(
    (1000,), (1000,), bounding=1 << 10, seccomp=2, no_new_privs=True, mounts=(Mount("/d", True),)
)


class TestPrivileges:
    def test_no_more_than_its_own_may_be_restored(self):
        assert beyond(OWN, OWN) == ()
        assert beyond(replace(OWN, bounding=0, mounts=()), OWN) == ()

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"uids": (0, 1000)}, "runs as user 0"),
            ({"gids": (4, 1000)}, "runs as group 4"),
            ({"permitted": 1 << 21}, r"permitted capabilities .*numbers 21"),
            ({"effective": 3 << 10}, "effective capabilities .*numbers 10, 11"),
            ({"ambient": 1}, "ambient"),
            ({"inheritable": 1}, "inheritable"),
            ({"bounding": 1 << 63}, "bounding"),
            ({"seccomp": 0}, "without the seccomp filter"),
            ({"no_new_privs": False}, "forbids new privileges"),
            ({"mounts": (Mount("/host"),)}, "that the container lacks"),
            ({"mounts": (Mount("/d", False),)}, "which the container has read-only"),
        ],
    )
    def test_whatever_goes_beyond_is_a_sentence(self, more, said):
        (sentence,) = beyond(replace(OWN, **more), OWN)
        assert re.search(said, sentence)

    @pytest.mark.parametrize(
        "path",
        [
            "/run/nvidia-ctk-hook4a1f8f1e-8f0e-4d57-9a58-6a2e6a3b8c11",
            "/var/run/nvidia-ctk-hook4a1f8f1e-8f0e-4d57-9a58-6a2e6a3b8c11",
            "/run/nvidia-ctk-hook/4a1f8f1e-8f0e-4d57-9a58-6a2e6a3b8c11",
            "/proc/driver/nvidia",
            "/proc/driver/nvidia/params",
            "/proc/driver/nvidia/gpus/0000:3b:00.0",
            "/dev/nvidia7",
            "/dev/nvidia12",
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia-modeset",
            "/dev/nvidia-caps",
            "/dev/nvidia-caps/nvidia-cap12",
            "/dev/dri/card1",
            "/dev/dri/renderD129",
        ],
    )
    def test_what_the_gpu_runtime_mounts_by_itself_may_be_missing(self, path):
        tree = replace(OWN, mounts=(*OWN.mounts, Mount(path)))
        assert beyond(tree, OWN) == beyond(tree, tree) == ()
        container = replace(OWN, mounts=(*OWN.mounts, Mount(path, True)))
        (sentence,) = beyond(tree, container)
        assert f"write to {path!r}, which the container has read-only" in sentence

    @pytest.mark.parametrize(
        "path",
        [
            "/run",
            "/run/nvidia-ctk-hook4a1f/more",
            "/data/run/nvidia-ctk-hook4a1f",
            "/proc/driver",
            "/proc/driver/nvidia-fs",
            "/dev",
            "/dev/sda",
            "/dev/nvidia",
            "/dev/nvidia-x",
            "/dev/nvidia0/x",
            "/dev/nvidia-uvm/x",
            "/dev/nvidia-caps-x",
            "/dev/dri",
            "/dev/dri/x",
            "/dev/dri/card0/x",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
        ],
    )
    def test_other_mounts_may_not(self, path):
        (sentence,) = beyond(replace(OWN, mounts=(*OWN.mounts, Mount(path))), OWN)
        assert f"a mount at {path!r} that the container lacks" in sentence

    def test_who_may_change_users_may_have_any(self):
        container = replace(OWN, bounding=1 << 7 | 1 << 6, no_new_privs=False)
        assert beyond(replace(OWN, uids=(33,), gids=(33,), bounding=0), container) == ()

    def test_without_new_privileges_what_the_bounding_set_holds_is_out_of_reach(self):
        tree = replace(OWN, uids=(0,), permitted=1 << 1, no_new_privs=True)
        container = replace(OWN, bounding=1 << 7 | 1 << 1)
        (user, capability) = beyond(replace(tree, bounding=0), container)
        assert "runs as user 0" in user
        assert "numbers 1)" in capability
        root = replace(container, permitted=container.bounding)
        assert beyond(replace(tree, bounding=0), root) == ()


def unknown():
    raise RetryableError("these are not listed yet")


class TestGrants:
    GRANT = Grant("team-a", ("team-b",), ("llama-0",), until=100.0)

    def test_a_namespace_may_restore_its_own(self):
        assert why_not(ID, "team-a", unknown, 0.0) == ""

    def test_another_needs_a_grant(self):
        assert "ArtifactGrant" in why_not(ID, "team-b", no_grants, 0.0)
        assert why_not(ID, "team-b", lambda: (self.GRANT,), 99.0) == ""

    def test_all_are_granted_where_that_is_said(self):
        assert why_not(ID, "team-b", lambda: (replace(self.GRANT, artifacts=("*",)),), 99.0) == ""

    def test_while_nobody_knows_what_is_granted_it_is_not_refused_for_good(self):
        with pytest.raises(RetryableError, match="not listed"):
            why_not(ID, "team-b", unknown, 0.0)

    @pytest.mark.parametrize(
        "grant",
        [
            replace(GRANT, namespace="team-b"),
            replace(GRANT, to=("team-c",)),
            replace(GRANT, artifacts=("llama-1",)),
            replace(GRANT, artifacts=()),
            replace(GRANT, until=50.0),
        ],
        ids=["of-another-namespace", "to-another", "for-another", "for-none", "over"],
    )
    def test_a_grant_covers_what_it_says(self, grant):
        assert why_not(ID, "team-b", lambda: (grant,), 60.0)


class TestRetention:
    def test_the_last_verified_copy_stays(self):
        assert "last verified" in why_keep("ram", {"ram": True})
        assert "not verified" in why_keep("ram", {"ram": True, "object": False})
        assert why_keep("ram", {"ram": True, "object": True}) == ""

    def test_unless_someone_says_why(self):
        assert why_keep("ram", {"ram": True}, "the pod is deleted") == ""

    def test_a_copy_that_is_not_there_needs_no_reason(self):
        assert why_keep("ram", {}) == ""


class TestSweep:
    DAY = 86400.0

    def test_a_pack_goes_in_two_sweeps(self):
        packs = {"old": (10, 0.0), "used": (7, 0.0), "young": (5, 90_000.0)}
        first = plan(Seen(packs, frozenset({"used"})), self.DAY, 100_000.0)
        assert (first.condemn, first.delete, first.named, first.waiting) == (("old",), (), 7, 10)
        later = Seen(packs, frozenset({"used"}), condemned={"old": 100_000.0})
        assert plan(later, self.DAY, 150_000.0).delete == ()
        second = plan(later, self.DAY, 100_000.0 + self.DAY)
        assert (second.delete, second.free) == (("old",), 10)

    def test_a_pack_that_is_named_after_all_is_spared(self):
        seen = Seen({"p": (1, 0.0)}, frozenset({"p"}), condemned={"p": 1.0})
        assert plan(seen, self.DAY, 1e9) == replace(
            plan(seen, self.DAY, 1e9), spare=("p",), delete=(), condemn=()
        )

    def test_a_writer_that_began_before_keeps_it(self):
        lease = {"w": Lease(began=99_000.0, until=1e9)}
        seen = Seen({"p": (1, 0.0)}, frozenset(), condemned={"p": 100_000.0}, leases=lease)
        assert plan(seen, self.DAY, 500_000.0).delete == ()
        later = replace(seen, leases={"w": Lease(began=100_001.0, until=1e9)})
        assert plan(later, self.DAY, 500_000.0).delete == ("p",)

    def test_a_lease_that_is_over_holds_nothing_and_goes(self):
        lease = {"w": Lease(began=0.0, until=1000.0)}
        seen = Seen({"p": (1, 0.0)}, frozenset(), condemned={"p": 100.0}, leases=lease)
        assert plan(seen, 10.0, 1000.0 + SKEW - 1).delete == ()
        over = plan(seen, 10.0, 1000.0 + SKEW)
        assert (over.delete, over.ended) == (("p",), ("w",))

    def test_marks_of_packs_that_are_gone_go_too(self):
        seen = Seen({}, frozenset({"u"}), condemned={"c": 0.0}, indexed=frozenset({"i", "u"}))
        assert plan(seen, self.DAY, 1.0).strays == ("c", "i")

    @given(
        st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.just(1), st.floats(0, 100))),
        st.frozensets(st.sampled_from("abcdef")),
        st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 100)),
    )
    def test_what_is_named_is_never_touched(self, packs, used, condemned):
        found = plan(Seen(packs, used, condemned), 20.0, 100.0)
        assert not used & {*found.delete, *found.condemn, *found.strays}


class TestRanges:
    def test_neighbours_are_read_together_and_strangers_apart(self):
        chunks = [
            Chunk(b"a", "p", 0, 100, 84),
            Chunk(b"b", "p", 100, 100, 84),
            zeros(5),
            Chunk(b"c", "p", 200 + GAP, 100, 84),
            Chunk(b"d", "p", 400 + 2 * GAP, 100, 84),
            Chunk(b"e", "q", 0, 100, 84),
        ]
        found = ranges([Placed(chunk, n) for n, chunk in enumerate(chunks)])
        assert [(r.pack, r.start, r.end, len(r.placed)) for r in found] == [
            ("p", 0, 300 + GAP, 3),
            ("p", 400 + 2 * GAP, 500 + 2 * GAP, 1),
            ("q", 0, 100, 1),
        ]

    def test_a_job_ends_with_its_pack_and_is_never_too_long(self):
        packs = ["p"] * 129 + ["q"] * 129 + ["r", "s"] * 100 + ["t"] * 400
        placed = [Placed(Chunk(b"n", pack, n, 1, 1), n) for n, pack in enumerate(packs)]
        found = list(jobs(placed))
        assert [one for job in found for one in job] == placed
        assert [len(job) for job in found[:2]] == [129, 129]
        assert all(64 <= len(job) <= 192 for job in found[:-1])

    def test_no_range_is_larger_than_it_may_be(self):
        chunks = [Chunk(b"n", "p", n * 65_552, 65_552, 65_536) for n in range(200)]
        found = ranges([Placed(chunk, n) for n, chunk in enumerate(chunks)])
        assert all(r.end - r.start <= LARGEST for r in found)
        assert sum(len(r.placed) for r in found) == 200


class TestPace:
    @given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 2)), max_size=50))
    def test_what_passes_keeps_the_rate(self, steps):
        pace, now, passed = Pace(1000.0), 10.0, 0
        for size, idle in steps:
            now += idle
            now += pace.reserve(size, now)
            passed += size
            assert passed - size <= 1000.0 * (now - 10.0 + pace.slack) + 1e-6

    @given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 2), st.booleans()), max_size=50))
    def test_what_waits_keeps_the_rate_of_all_and_what_is_urgent_its_own(self, steps):
        pace, now, passed, urgently = Pace(1000.0), 10.0, 0, 0
        for size, idle, urgent in steps:
            now += idle
            now += pace.reserve(size, now, urgent=urgent)
            before = urgently if urgent else passed
            assert before <= 1000.0 * (now - 10.0 + pace.slack) + 1e-6
            passed, urgently = passed + size, urgently + size * urgent

    def test_what_is_urgent_waits_only_for_what_is_urgent(self):
        pace = Pace(1000.0)
        assert pace.reserve(5000, 10.0) == 0.0
        assert pace.reserve(1000, 10.0, urgent=True) == 0.0
        assert pace.reserve(1000, 10.0, urgent=True) == pytest.approx(0.9)
        assert pace.reserve(1, 10.0) == pytest.approx(6.9)

    def test_without_a_rate_nothing_waits(self):
        assert Pace(0.0).reserve(10**12, 0.0) == 0.0
