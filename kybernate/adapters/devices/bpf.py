"""BPF programs of a cgroup that decide about devices: load, attach, find and detach."""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Instruction = tuple[int, int, int, int, int]

_BPF = 321
"""The system call's number on x86-64."""
_LOAD, _ATTACH, _DETACH, _BY_ID, _INFO, _QUERY = 5, 8, 9, 13, 15, 16
_KIND, _PLACE, _BESIDE_OTHERS = 15, 6, 2
_MOST = 64
_NAME_AT = 64
_CHARACTER, _READ_OR_WRITE = 2, 6 << 16

_READ_WORD, _COPY, _AND, _SET = 0x61, 0xBF, 0x57, 0xB7
_UNLESS, _IF, _JUMP, _END = 0x55, 0x15, 0x05, 0x95
_ALLOW, _DENY = 1, 0

_libc = ctypes.CDLL(None, use_errno=True)


def denies(devices: Iterable[tuple[int, int]]) -> bytes:
    """A program that lets nobody open these character devices (major and minor)."""
    wanted = list(devices)
    code: list[Instruction] = [
        (_READ_WORD, 2, 1, 0, 0),  # how, and what kind
        (_READ_WORD, 3, 1, 4, 0),  # major
        (_READ_WORD, 4, 1, 8, 0),  # minor
        (_COPY, 5, 2, 0, 0),
        (_AND, 5, 0, 0, 0xFFFF),
        (_UNLESS, 5, 0, 2 + 3 * len(wanted), _CHARACTER),
        (_AND, 2, 0, 0, _READ_OR_WRITE),
        (_IF, 2, 0, 3 * len(wanted), 0),
    ]
    for at, (major, minor) in enumerate(wanted):
        to_deny = 3 * (len(wanted) - at - 1) + 2
        code += [(_UNLESS, 3, 0, 2, major), (_UNLESS, 4, 0, 1, minor), (_JUMP, 0, 0, to_deny, 0)]
    code += [
        (_SET, 0, 0, 0, _ALLOW),
        (_END, 0, 0, 0, 0),
        (_SET, 0, 0, 0, _DENY),
        (_END, 0, 0, 0, 0),
    ]
    return b"".join(
        struct.pack("<BBhi", op, src << 4 | dst, off, k) for op, dst, src, off, k in code
    )


def attach(group: int, program: bytes, name: str) -> None:
    """Beside what others have attached to the open cgroup. Raises OSError."""
    code = ctypes.create_string_buffer(program, len(program))
    license_ = ctypes.create_string_buffer(b"Apache-2.0")
    places = ctypes.addressof(code), ctypes.addressof(license_)
    packed = struct.pack(
        "<IIQQIIQII16s", _KIND, len(program) // 8, *places, 0, 0, 0, 0, 0, name.encode()
    )
    with _owned(_call(_LOAD, packed + struct.pack("<II", 0, _PLACE))) as loaded:
        _call(_ATTACH, struct.pack("<IIII", group, loaded, _PLACE, _BESIDE_OTHERS))


def detach(group: int, name: str) -> int:
    """All of this name; how many there were. Raises OSError."""
    found = 0
    for number in _attached(group):
        with _owned(_call(_BY_ID, struct.pack("<III", number, 0, 0))) as program:
            if _name_of(program) == name:
                _call(_DETACH, struct.pack("<IIII", group, program, _PLACE, 0))
                found += 1
    return found


def attached(group: int, name: str) -> bool:
    """Whether one of this name is. Raises OSError."""
    for number in _attached(group):
        with _owned(_call(_BY_ID, struct.pack("<III", number, 0, 0))) as program:
            if _name_of(program) == name:
                return True
    return False


def _attached(group: int) -> list[int]:
    numbers = (ctypes.c_uint32 * _MOST)()
    attribute = struct.pack("<IIIIQI", group, _PLACE, 0, 0, ctypes.addressof(numbers), _MOST)
    buffer = ctypes.create_string_buffer(attribute, 128)
    _called(_QUERY, buffer)
    return list(numbers)[: struct.unpack_from("<I", buffer.raw, 24)[0]]


def _name_of(program: int) -> str:
    info = ctypes.create_string_buffer(256)
    _call(_INFO, struct.pack("<IIQ", program, len(info), ctypes.addressof(info)))
    return info.raw[_NAME_AT : _NAME_AT + 16].rstrip(b"\0").decode(errors="replace")


@contextmanager
def _owned(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _call(command: int, attribute: bytes) -> int:
    return _called(command, ctypes.create_string_buffer(attribute, 128))


def _called(command: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
    result = int(_libc.syscall(_BPF, command, buffer, len(buffer)))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf: {os.strerror(number)}")
    return result
