"""Manifests: what is written is read; what is made up raises our error and names the field."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.manifest import (
    DataKey,
    Facts,
    File,
    Leaf,
    Manifest,
    Pack,
    decode,
    encode,
    facts_of,
)
from kybernate.core.artifacts.privileges import Mount, Privileges
from kybernate.errors import CorruptError, UnfitError

PRIVILEGES = Privileges((0, 33), (0,), bounding=0xA80425FB, seccomp=2, mounts=(Mount("/data"),))
FACTS = Facts(
    *("team-a", "llama-0", "5e1f", "main", "sha256:abc", "9f2c", "6.18.5", "4.2.1", "x86_64"),
    highest_pid=312,
    privileges=PRIVILEGES,
    gpu_product="NVIDIA H100",
    gpu_count=1,
    driver="580.95.05",
    cuda="13.0",
)
RAW = Manifest(
    *(1, "team-a/llama-0@20260131T120000Z-00c0ffee", "2026-01-31T12:00:00Z", "raw", FACTS),
    files=(File("pages-1.img", 5, "ab" * 32), File("core-1.img", 3, "cd" * 32)),
    total=8,
    stored=8,
)
PACKED = replace(
    RAW,
    form="packed",
    files=(File("pages-1.img", 8, leaves=(Leaf("ef" * 32, 0, 16, 100, 300, 8),)),),
    packs=(Pack("12" * 16, 4096),),
    key=DataKey(1, "key", "00"),
)
text = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=40).filter(
    str.isprintable
)
number = st.integers(0, (1 << 64) - 1)


@pytest.mark.parametrize("made", [RAW, PACKED])
def test_a_manifest_is_read_as_it_was_written(made):
    assert decode(encode(made)) == made


@given(
    st.builds(
        replace,
        st.just(FACTS),
        pod=text,
        image_digest=text,
        kernel=text,
        model=text,
        highest_pid=number,
        gpu_count=number,
        privileges=st.builds(
            Privileges,
            st.tuples(number, number),
            st.lists(number, max_size=4).map(tuple),
            no_new_privs=st.booleans(),
            mounts=st.lists(st.builds(Mount, text, st.booleans()), max_size=3).map(tuple),
        ),
    )
)
def test_any_facts_are_read_as_they_were_written(facts):
    assert decode(encode(replace(RAW, facts=facts))).facts == facts


def changed(path, value):
    raw = json.loads(encode(PACKED))
    at = raw
    for step in path[:-1]:
        at = at[step]
    if value is KeyError:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("version",), 0, "version is 0"),
        (("version",), "1", "version must be a number"),
        (("version",), True, "version must be a number"),
        (("form",), "zip", "form must be"),
        (("created",), "yesterday", "created must be a time"),
        (("id",), "../../etc/passwd", "id .*is no artifact"),
        (("id",), "team-b/llama-0@20260131T120000Z-00c0ffee", "facts.namespace is not the ID's"),
        (("origin",), "x", "origin .*is no artifact"),
        (("facts", "gpu_count"), -1, "facts.gpu_count must be a whole number"),
        (("facts", "pod"), KeyError, "facts.pod is missing"),
        (("facts", "namespace"), "../x", "facts.namespace"),
        (("facts", "parent"), "x", "facts.parent .*is no artifact"),
        (("facts", "privileges", "uids"), ["0"], r"facts.privileges.uids\[0\] must be a number"),
        (("facts", "privileges", "mounts"), 1, "facts.privileges.mounts must be a list"),
        (("files", 0, "name"), "../../boot/x", r"files\[0\].name is no plain file name"),
        (("files", 0, "name"), "a\0b", r"files\[0\].name"),
        (("files", 0, "size"), 1 << 64, r"files\[0\].size must be a whole number"),
        (("files", 0, "size"), 9, "is not what its leaves cover"),
        (("files", 0, "leaves", 0, "pack"), 1, r"leaves\[0\].pack is not in packs"),
        (("files", 0, "leaves", 0, "name"), "zz", r"leaves\[0\].name"),
        (("files", 0, "leaves", 0, "size"), 1 << 40, r"leaves\[0\].size"),
        (("packs", 0, "id"), "../x", r"packs\[0\].id"),
        (("key", "wrapped"), "", "key is missing"),
        (("total",), 7, "total is not the sum"),
    ],
)
def test_what_is_wrong_is_named(path, value, said):
    with pytest.raises(CorruptError, match=said):
        decode(changed(path, value))


@pytest.mark.parametrize(
    "path",
    [
        ("surprise",),
        ("facts", "surprise"),
        ("facts", "privileges", "surprise"),
        ("files", 0, "surprise"),
        ("files", 0, "leaves", 0, "surprise"),
        ("key", "surprise"),
    ],
    ids=lambda path: ".".join(map(str, path)),
)
@pytest.mark.parametrize("value", [1, {"a": [None, -1.5]}, "x" * 9000], ids=["1", "deep", "long"])
def test_fields_that_only_a_newer_release_knows_are_left_out(path, value):
    assert decode(changed(path, value)) == PACKED


@pytest.mark.parametrize("newer", [2, 3, (1 << 64) - 1])
def test_a_newer_version_is_no_damage_and_nothing_of_it_is_guessed(newer):
    with pytest.raises(UnfitError, match="run the release that wrote it, or a newer one"):
        decode(changed(("version",), newer))
    with pytest.raises(UnfitError):
        decode(b'{"version":%d,"files":"elsewhere"}' % newer)


def test_two_files_of_one_name_are_refused():
    twice = replace(RAW, files=(RAW.files[0], replace(RAW.files[0], size=3)))
    with pytest.raises(CorruptError, match=r"files\[1\].name occurs twice"):
        decode(encode(twice))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"version":1,"version":1}',
        b'{"version":NaN}',
        b'{"version":' + b"9" * 5000 + b"}",
        b"\xff\xfe",
    ],
    ids=["empty", "null", "deep", "deeper", "twice", "nan", "huge", "no-text"],
)
def test_hostile_texts_raise_our_error(data):
    with pytest.raises(CorruptError):
        decode(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
paths = [("version",), ("facts",), ("files",), ("files", 0), ("files", 0, "leaves"), ("packs",)]


@given(st.sampled_from(paths), json_values)
def test_any_value_anywhere_is_read_or_corrupt(path, value):
    try:
        decode(changed(path, value))
    except CorruptError:
        return
    except UnfitError:
        assert path == ("version",)


@given(st.binary(max_size=300), st.integers(0, 1000))
def test_any_bytes_within_a_manifest_are_read_or_corrupt(junk, at):
    good = encode(RAW)
    at %= len(good)
    try:
        decode(good[:at] + junk + good[at + len(junk) :])
    except (CorruptError, UnfitError):
        return


def test_facts_may_come_as_the_agent_has_them():
    raw = {
        name: getattr(FACTS, name)
        for name in Facts.__dataclass_fields__
        if getattr(FACTS, name) not in ("", 0)
    }
    assert facts_of(raw) == FACTS
    assert facts_of({**raw, "privileges": {"uids": (0, 33), "gids": [0]}}).privileges.uids == (
        0,
        33,
    )
    with pytest.raises(CorruptError, match="facts: kernel is missing"):
        facts_of({name: value for name, value in raw.items() if name != "kernel"})


def test_a_manifest_beyond_all_measure_is_not_even_read():
    with pytest.raises(CorruptError, match="more than 64 MiB"):
        decode(b" " * (manifests.LARGEST + 1))
