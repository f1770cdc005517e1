"""Clocks that run too fast or too slow: Debian's libfaketime, preloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from images import debs
from images.cache import silent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from images.cache import Progress

PACKAGES = debs.DebSet("faketime", "bookworm", (("libfaketime", "0.9.10-2.1"),))
_LIBRARY = "usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"


def ensure(progress: Progress = silent) -> debs.Unpacked:
    """The library, unpacked. Raises KybernateError."""
    return debs.unpack(PACKAGES, progress)


def environ(rate: float) -> Mapping[str, str]:
    """What has a process's wall clock run so many times as fast as it should, from its start on.
    What measures time that passed is left alone. Raises KybernateError."""
    return {
        "LD_PRELOAD": str(ensure().folder / _LIBRARY),
        "FAKETIME": f"+0 x{rate:g}",
        "DONT_FAKE_MONOTONIC": "1",
    }
