"""Bodies that no caller should send: documents of the right shape with something wrong in them.

Seeded, so that a number names a body. What JSON's writers refuse to write (nesting beyond their own
limits, numbers beyond 64 bits, what is no JSON at all) is put into the text afterwards.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

_RAW = {
    "@deep-64@": b"[" * 64 + b"]" * 64,
    "@deep-300@": b'{"a":' * 300 + b"1" + b"}" * 300,
    "@deep-1000@": b"[" * 1000 + b"]" * 1000,
    "@deep-9000@": b"[" * 9000 + b"]" * 9000,
    "@30-digits@": b"9" * 30,
    "@5000-digits@": b"9" * 5000,
    "@1e999@": b"1e999",
    "@nan@": b"NaN",
    "@surrogate@": b'"\\ud800"',
    "@latin@": b'"\xe9"',
    "@nothing@": b"",
}
_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 65536, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.5, -1.5, 1e300, "", " ", "x", "0", "1", "-1", "1e999", "9" * 30, "9" * 5000),
    *(
        "\u0000",
        "\u0661\u0662",
        "\u00e9" * 300,
        "x" * 70_000,
        "true",
        "null",
        "../..",
        "{}",
        "[" * 5000,
    ),
    *([], {}, [None], [[]], [{}], {"": None}, {"a": {}}, ["x"] * 200),
    *({f"k{number}": number for number in range(200)}, [0] * 200),
    *_RAW,
)


class Spoiler:
    """Makes bodies out of good documents. `words` are texts that mean something to the reader."""

    def __init__(self, random: Random, words: tuple[str, ...]) -> None:
        self._random = random
        self._words = words

    def body(self, document: bytes, *within: str) -> bytes:
        """The document with one to four things wrong, or now and then nothing.

        Most of them are below the object at the path `within`, which is read most closely.
        """
        holder = [json.loads(document)]
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 2, 3, 4))):
            inner = holder[0]
            for key in within if self._random.random() < 0.9 else ():
                inner = inner.get(key) if isinstance(inner, dict) else None
            self._spoil([inner] if inner and inner is not holder[0] else holder)
        text = json.dumps(holder[0]).encode()
        for mark, raw in _RAW.items():
            text = text.replace(f'"{mark}"'.encode(), raw)
        return text if self._random.random() < 0.95 else self._tear(text)

    def _spoil(self, holder: Any) -> None:
        at: Any = 0
        # Deeper places are more numerous and more telling than the top.
        for _ in range(self._random.randrange(1, 14)):
            inner = holder[at]
            if not isinstance(inner, dict | list) or not inner:
                break
            holder = inner
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            at = self._random.choice(keys)
        self._change(holder, at)

    def _change(self, holder: Any, at: Any) -> None:
        way = self._random.randrange(8)
        if way == 0 and isinstance(holder, dict):
            del holder[at]
        elif way == 1 and isinstance(holder, dict):
            holder[self._random.choice(self._words)] = holder.pop(at)
        elif way == 2 and isinstance(holder, dict):
            holder[self._random.choice(self._words)] = self._value()
        elif way == 3 and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[at]) for _ in range(self._random.choice((1, 3))))
        elif way == 4:
            holder[at] = copy.deepcopy(holder if self._random.random() < 0.3 else [holder[at]])
        else:
            holder[at] = self._value()

    def _value(self) -> Any:
        pool = self._words if self._random.random() < 0.4 else _JUNK
        return copy.deepcopy(self._random.choice(pool))

    def _tear(self, text: bytes) -> bytes:
        at = self._random.randrange(len(text) + 1)
        way = self._random.randrange(3)
        if way == 0:
            return text[:at]
        if way == 1:
            return text[:at] + self._random.randbytes(3) + text[at:]
        return text[:at] + text[at + 1 :]
