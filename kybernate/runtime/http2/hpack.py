"""Headers as HTTP/2 has them (RFC 7541): all of reading, and of writing what is plainest. Pure."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    Header = tuple[bytes, bytes]

TABLE_BYTES = 4096
"""What a reader keeps of headers that it was told to remember, by the RFC's count; its default."""

_ENTRY_BYTES = 32
"""What each entry counts beside its text."""

_MOST_INTEGER = 1 << 28


class HpackError(ValueError):
    """These bytes are no headers; nothing that follows them can be read either."""


_STATIC: tuple[Header, ...] = tuple(
    (name, value)
    for name, _, value in (
        entry.partition(b"=")
        for entry in b"""\
:authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|\
:status=200|:status=204|:status=206|:status=304|:status=400|:status=404|:status=500|\
accept-charset|accept-encoding=gzip, deflate|accept-language|accept-ranges|accept|\
access-control-allow-origin|age|allow|authorization|cache-control|content-disposition|\
content-encoding|content-language|content-length|content-location|content-range|content-type|\
cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|\
if-unmodified-since|last-modified|link|location|max-forwards|proxy-authenticate|\
proxy-authorization|range|referer|refresh|retry-after|server|set-cookie|\
strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate""".split(b"|")
    )
)
"""Appendix A, numbered from 1."""

_BITS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606"
    "060505050606060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d"
    "0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717"
    "1718171818161718171717171516171617171816151416161717151716161815161717151516151716171714161616"
    "171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b1418141516151517161619"
    "1918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
)
"""How many bits the code of each byte has (Appendix B); codes of one length follow each other."""


def _codes() -> dict[tuple[int, int], int]:
    found, code, bits = {}, 0, 0
    for byte in sorted(range(256), key=lambda one: (_BITS[one], one)):
        code <<= _BITS[byte] - bits
        bits = _BITS[byte]
        found[bits, code] = byte
        code += 1
    return found


_CODES = _codes()


@lru_cache(1024)
def unpack(data: bytes) -> bytes:
    """Text in Huffman's code. Raises HpackError."""
    text, code, bits = bytearray(), 0, 0
    for at in range(8 * len(data)):
        code = code << 1 | data[at >> 3] >> (7 - (at & 7)) & 1
        bits += 1
        byte = _CODES.get((bits, code))
        if byte is not None:
            text.append(byte)
            code = bits = 0
    if bits > 7 or code != (1 << bits) - 1:
        raise HpackError("Huffman's code ends in the middle")
    return bytes(text)


class Reader:
    """Reads one direction of a connection: what it is told to remember serves later headers."""

    def __init__(self, most: int) -> None:
        """`most` is how many bytes the headers of one request may have, by the RFC's count."""
        self._most = most
        self._known: deque[Header] = deque()
        self._bytes = 0
        self._limit = TABLE_BYTES

    def read(self, block: bytes) -> list[Header]:
        """The headers of one block. Raises HpackError."""
        found: list[Header] = []
        at, size = 0, 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0xE0 == 0x20:
                    at = self._resize(block, at)
                    continue
                header, at = self._header(block, at, first)
                found.append(header)
                size += _size(header)
                if size > self._most:
                    raise HpackError(f"a request's headers have more than {self._most} bytes")
        except IndexError:
            raise HpackError("the headers end in the middle") from None
        return found

    def _header(self, block: bytes, at: int, first: int) -> tuple[Header, int]:
        if first & 0x80:
            index, at = _integer(block, at, 7)
            return self._entry(index), at
        remember = first & 0x40
        index, at = _integer(block, at, 6 if remember else 4)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        if remember:
            self._remember((name, value))
        return (name, value), at

    def _entry(self, index: int) -> Header:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        if not index or index - len(_STATIC) > len(self._known):
            raise HpackError(f"no header has number {index}")
        return self._known[index - len(_STATIC) - 1]

    def _resize(self, block: bytes, at: int) -> int:
        limit, at = _integer(block, at, 5)
        if limit > TABLE_BYTES:
            raise HpackError(f"a table of {limit} bytes was not agreed on")
        self._limit = limit
        self._shrink(0)
        return at

    def _remember(self, header: Header) -> None:
        self._shrink(_size(header))
        if _size(header) <= self._limit:
            self._known.appendleft(header)
            self._bytes += _size(header)

    def _shrink(self, room: int) -> None:
        while self._known and self._bytes + room > self._limit:
            self._bytes -= _size(self._known.pop())


def write(headers: Iterable[Header]) -> bytes:
    """Headers of which nobody needs to remember any."""
    block = bytearray()
    for name, value in headers:
        block += b"\0" + _length(name) + name + _length(value) + value
    return bytes(block)


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),))
    rest, made = len(text) - 127, bytearray((127,))
    while rest > 127:
        made.append(rest & 127 | 128)
        rest >>= 7
    made.append(rest)
    return bytes(made)


def _size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + _ENTRY_BYTES


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 127) << shift
        if value > _MOST_INTEGER or shift > 28:
            raise HpackError("a number is larger than any of a header")
        if byte < 128:
            return value, at
        shift += 7


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    packed = block[at] & 0x80
    length, at = _integer(block, at, 7)
    text = block[at : at + length]
    if len(text) < length:
        raise HpackError("a text ends in the middle")
    return unpack(text) if packed else text, at + length
