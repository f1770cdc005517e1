"""Quantities of bytes, as Kubernetes writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.quantity import format_quantity, parse_quantity
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from decimal import Decimal


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("-0", 0),
        ("+5", 5),
        ("80Gi", 80 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("0.5Ki", 512),
        (".5Ki", 512),
        ("5.", 5),
        ("1.5G", 1_500_000_000),
        ("24k", 24_000),
        ("7E", 7 * 10**18),
        ("7Ei", 7 * 2**60),
        ("2e9", 2 * 10**9),
        ("2E9", 2 * 10**9),
        ("2.5e+3", 2500),
        ("5000e-3", 5),
        ("4000m", 4),
        ("9223372036854775807", 2**63 - 1),
        ("0e999", 0),
    ],
)
def test_reads(text: str, amount: int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "Gi",
            ".",
            "1 Gi",
            " 1Gi",
            "1Gi ",
            "1gi",
            "1K",
            "1ki",
            "1GiB",
            "1e",
            "1e9Gi",
            "1e3k",
        ),
        *("1,5Gi", "0x10", "1_000", "NaN", "inf", "--1", "\u0661Gi", "1\n", "1e9999"),
    ],
)
def test_refuses_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-1Gi", "negative"),
        ("8Ei", "largest"),
        ("1e19", "largest"),
        ("1e999", "largest"),
        ("1m", "whole"),
        ("1.0000000000000000000000000000000000001Gi", "whole"),
        ("1e-999", "whole"),
    ],
)
def test_refuses_amounts_that_are_no_bytes(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_quantity(text)


def test_the_error_names_the_field() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_quantity("lots", "kyb.ai/vram")
    assert caught.value.field == "kyb.ai/vram"


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_what_is_formatted_reads_back(amount: int) -> None:
    assert parse_quantity(format_quantity(amount)) == amount


@given(
    st.decimals(min_value=0, max_value=100, places=3),
    st.sampled_from(["k", "M", "G", "T"]),
)
def test_decimal_suffixes_are_exact(amount: Decimal, suffix: str) -> None:
    factor = 1000 ** (1 + "kMGT".index(suffix))
    assert parse_quantity(f"{amount:f}{suffix}") == amount * factor


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (1023, "1023"), (1024, "1Ki"), (80 << 30, "80Gi"), (3 << 29, "1536Mi")],
)
def test_formats(amount: int, text: str) -> None:
    assert format_quantity(amount) == text


def test_formats_nothing_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_quantity(-1)
