"""An Artifact says what it was given, and what it can't say it leaves out."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.api.restoring.artifacts import dump_artifact, read_artifact
from kybernate.core.artifacts.listed import HeldCopy, Listed

COPIES = st.builds(
    HeldCopy,
    st.sampled_from(["nvme", "object"]),
    st.sampled_from(["", "n1"]),
    st.sampled_from(["pending", "verified", "missing"]),
    st.integers(0, 2**50),
)
LISTED = st.builds(
    Listed,
    st.just("shop/llama-0@20260131T120000Z-00c0ffee"),
    st.sampled_from(["llama-0", "a" * 100]),
    st.just("u1"),
    st.text(max_size=9),
    st.integers(0, 2**50),
    st.integers(0, 2**41),
    st.lists(COPIES, max_size=4).map(tuple),
    st.sampled_from(["", "llama-7f"]),
    st.sampled_from(["", "hourly"]),
    st.just(True),
)


@given(LISTED)
def test_what_is_dumped_is_read_as_it_was(one: Listed) -> None:
    item = orjson.loads(orjson.dumps(dump_artifact(one)))
    assert read_artifact(item) == one
    assert all(value is None or len(value) < 64 for value in item["metadata"]["labels"].values())


def test_one_without_the_label_of_its_moment_is_to_be_written_again() -> None:
    one = Listed("shop/a@20260131T120000Z-00c0ffee", "a", "u1", "", 7, 1000, ())
    item = dump_artifact(one)
    del item["metadata"]["labels"]["kyb.ai/moment"]
    assert read_artifact(item) == one._replace(selectable=False)


@pytest.mark.parametrize("status", [None, {}, {"artifact": "x"}, {"artifact": "x", "takenAt": 1}])
def test_what_says_nothing_is_none(status: object) -> None:
    assert read_artifact({"metadata": {"name": "a"}, "status": status}) is None
