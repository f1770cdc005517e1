"""Sums in small files of JSON, so that a bit which a disk has changed is noticed.

A sum is a member of the record that it is of, so that whoever knows nothing of it reads on; what
an older release wrote has none.
"""

from __future__ import annotations

import json
import logging
import zlib
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

MEMBER = "sum"


def _sum_of(record: Mapping[str, object]) -> list[str]:
    """CRC-32 of the record as JSON. In two halves: in a file of pairs it is one, too."""
    found = f"{zlib.crc32(orjson.dumps(record)):08x}"
    return [found[:4], found[4:]]


def summed(record: Mapping[str, object]) -> dict[str, object]:
    """The record, and its sum behind it."""
    return {**record, MEMBER: _sum_of(record)}


def check(record: Mapping[str, object]) -> None:
    """Raises ValueError unless the record is what its sum says, or has none."""
    rest = {name: value for name, value in record.items() if name != MEMBER}
    if MEMBER in record and record[MEMBER] != _sum_of(rest):
        raise ValueError("its sum is wrong: it was changed where it lies")


def read(path: Path, todo: str) -> dict[str, Any]:
    """The record in the file; empty if that isn't what was written: then the file is kept aside,
    and the log says so and what is `todo`. Raises OSError."""
    try:
        record = json.loads(path.read_bytes())
        check(record)
    except (ValueError, AttributeError) as error:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        log.warning("%s can't be read (%s) and is kept as %s: %s", path, error, aside, todo)
        return {}
    found: dict[str, Any] = record
    return found
