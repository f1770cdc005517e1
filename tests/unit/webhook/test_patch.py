from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.webhook.pods import apply
from webhook.pods.patch import diff

KEYS = st.sampled_from(["a", "b", "kyb.ai/x", "~", "~1", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(DOCUMENTS, DOCUMENTS)
def test_the_steps_lead_from_one_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply(old, diff(old, new)) == new


@given(DOCUMENTS)
def test_equal_documents_need_no_step(document: dict[str, Any]) -> None:
    assert diff(document, document) == []


def test_names_with_slashes_are_escaped_and_items_are_appended() -> None:
    assert diff({"a": {}, "l": [1]}, {"a": {"kyb.ai/x": "1"}, "l": [1, 2]}) == [
        {"op": "add", "path": "/a/kyb.ai~1x", "value": "1"},
        {"op": "add", "path": "/l/-", "value": 2},
    ]
