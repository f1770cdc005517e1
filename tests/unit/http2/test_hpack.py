"""Headers of HTTP/2, by the examples of RFC 7541 and by what is no header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.runtime.http2 import hpack

REQUESTS = (
    [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"www.example.com"),
    ],
    [
        *((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")),
        *((b":authority", b"www.example.com"), (b"cache-control", b"no-cache")),
    ],
    [
        *((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html")),
        *((b":authority", b"www.example.com"), (b"custom-key", b"custom-value")),
    ],
)
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
PACKED = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [PLAIN, PACKED], ids=["plain", "packed"])
def test_the_requests_of_the_rfc_are_read(blocks: tuple[str, ...]) -> None:
    reader = hpack.Reader(1 << 16)
    assert [reader.read(bytes.fromhex(block)) for block in blocks] == list(REQUESTS)


def test_what_is_remembered_makes_room_as_the_rfc_says() -> None:
    reader = hpack.Reader(1 << 16)
    # No more than 40 bytes: one entry of a letter each for name and value counts 34.
    assert reader.read(bytes.fromhex("3f09" + "400161" + "0162")) == [(b"a", b"b")]
    assert reader.read(bytes.fromhex("be")) == [(b"a", b"b")]
    assert reader.read(bytes.fromhex("400163" + "0164" + "be")) == [(b"c", b"d")] * 2
    with pytest.raises(hpack.HpackError, match="number 63"):
        reader.read(bytes.fromhex("bf"))


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("80", "number 0"),
        ("be", "number 62"),
        ("41", "in the middle"),
        ("410f7777", "in the middle"),
        ("3fe21f", "table of 4097 bytes"),
        ("ffffffffffff0f", "larger than any"),
        ("0081ff0161", "Huffman"),
        ("00810001" + "61", "Huffman"),
        ("0082ffff0161", "Huffman"),
    ],
)
def test_what_is_no_header_is_said_to_be_none(block: str, why: str) -> None:
    with pytest.raises(hpack.HpackError, match=why):
        hpack.Reader(1 << 16).read(bytes.fromhex(block))


def test_a_few_bytes_do_not_become_endless_headers() -> None:
    reader = hpack.Reader(1000)
    remembered = b"\x40" + hpack.write([(b"name", b"x" * 500)])[1:]
    reader.read(remembered)
    with pytest.raises(hpack.HpackError, match="more than 1000 bytes"):
        reader.read(b"\xbe" * 3)


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300))))
def test_what_is_written_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    assert hpack.Reader(1 << 20).read(hpack.write(headers)) == headers


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_headers_or_an_error(blocks: list[bytes]) -> None:
    reader = hpack.Reader(1 << 16)
    for block in blocks:
        try:
            reader.read(block)
        except hpack.HpackError:
            return
