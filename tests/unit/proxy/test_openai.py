"""What is read of a request's JSON, and what is changed in it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.openai import ApiError, model_of, rename_model

NAME = "shop/llama"
LIKE_IT = re.compile(rf'"model": "{NAME}"')
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["model", NAME, '"model":"x"', "\\"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "x", 'a"model', "y"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    before=st.dictionaries(st.sampled_from("ab"), VALUES),
    after=st.dictionaries(st.sampled_from("cd"), VALUES),
)
@example(before={"a": [{"model": NAME}] * 3}, after={})
@example(before={"a": [{"model": NAME}] * 4}, after={})
def test_only_the_models_name_is_changed_or_nothing_where_four_others_come_first(before, after):
    whole = {**before, "model": NAME, **after}
    for text in (json.dumps(whole), json.dumps(whole).replace("/", "\\/")):
        body = bytearray(text.encode())
        if len(LIKE_IT.findall(json.dumps(before))) >= 4:
            with pytest.raises(ApiError, match="Write the model's name plainly"):
                rename_model(body, NAME, "llama")
            assert body == text.encode()
            continue
        rename_model(body, NAME, "llama")
        assert json.loads(body) == {**whole, "model": "llama"}
        assert len(body) in (len(text) - 5, len(text) - 6)


def test_of_two_names_the_one_that_counts_is_changed():
    body = bytearray(b'{"model": "shop/llama", "model" : "shop/llama"}')
    rename_model(body, NAME, "llama")
    assert body == b'{"model": "shop/llama", "model" : "llama"}'


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"mod\\u0065l": "shop/llama"}', id="escaped"),
        pytest.param(
            b'{"x": [' + b'{"model": "shop/llama"},' * 99 + b'1], "model": "shop/llama"}', id="many"
        ),
    ],
)
def test_a_name_whose_place_is_not_clear_is_refused_and_the_body_left(body):
    changed = bytearray(body)
    with pytest.raises(ApiError) as caught:
        rename_model(changed, NAME, "llama")
    assert (caught.value.status, caught.value.code) == (400, "model_unclear")
    assert changed == body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b'{"model": "m"} x', "invalid_json"),
        (b'{"x": ' + b"[" * 100_000, "invalid_json"),
        (b'{"model": "\xff"}', "invalid_json"),
        (b'{"model": ""}', "model_missing"),
        (b'{"model": {"model": "m"}}', "model_missing"),
        (b'{"model": "' + b"m" * 513 + b'"}', "model_missing"),
    ],
)
def test_what_is_wrong_is_said(body, code):
    with pytest.raises(ApiError) as caught:
        model_of(body)
    assert (caught.value.status, caught.value.code) == (400, code)
