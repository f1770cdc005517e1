"""A tiny language model with random weights, as a GGUF file that llama.cpp serves.

It says nothing that means anything, but always the same: the weights come from a fixed seed. The
format is that of ggml's `docs/gguf.md`, version 3; the tensors are those of a LLaMA.
"""

from __future__ import annotations

import math
import random
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Value = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]

VERSION = 3
ALIGNMENT = 32
WIDTH = 64
INNER = 128
HEADS = 4
LAYERS = 2
CONTEXT = 2048
SEED = 1
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_TYPES = {int: (_INT32, "i"), float: (_FLOAT32, "f")}
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_F32 = 0
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def model() -> bytes:
    """The whole file: about half a megabyte."""
    tensors, settings = list(_tensors()), list(_settings())
    head = b"GGUF" + struct.pack("<IQQ", VERSION, len(tensors), len(settings))
    head += b"".join(settings)
    source, data = random.Random(SEED), bytearray()
    for name, shape in tensors:
        head += _string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *shape, _F32, len(data))
        count = math.prod(shape)
        data += _padded(struct.pack(f"<{count}f", *(source.gauss(0, 0.3) for _ in range(count))))
    return bytes(_padded(head) + data)


def _tokens() -> Iterator[tuple[str, int]]:
    """Each token with its kind: any text can be said in bytes, small letters have their own."""
    yield from (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL))
    yield from ((f"<0x{byte:02X}>", _BYTE) for byte in range(256))
    yield from ((letter, _NORMAL) for letter in (_SPACE, *"abcdefghijklmnopqrstuvwxyz"))


def _settings() -> Iterator[bytes]:
    tokens = list(_tokens())
    values: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _ in tokens],
        "tokenizer.ggml.scores": [-float(number) for number in range(len(tokens))],
        "tokenizer.ggml.token_type": [kind for _, kind in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    for name, value in values.items():
        yield _string(name) + _typed(value)


def _tensors() -> Iterable[tuple[str, tuple[int, ...]]]:
    words = sum(1 for _ in _tokens())
    yield "token_embd.weight", (WIDTH, words)
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (WIDTH, words)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", (WIDTH,)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{name}.weight", (WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            yield f"blk.{layer}.{name}.weight", (WIDTH, INNER)
        yield f"blk.{layer}.ffn_down.weight", (INNER, WIDTH)


def _typed(value: Value) -> bytes:
    match value:
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case [str(), *_]:
            texts = b"".join(_string(str(one)) for one in value)
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + texts
        case _:
            kind, code = _TYPES[type(value[0])]
            return struct.pack(f"<IIQ{len(value)}{code}", _ARRAY, kind, len(value), *value)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
