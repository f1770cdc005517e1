"""Calling the vendor's binding: its errors become ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 10
"""NVML's code for a wait that ended without an event."""


def call(nvml: Any, name: str, function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns. Raises DriverError, which names it `name`."""
    try:
        return function(*args)
    except nvml.NVMLError as error:
        raise DriverError(name, int(error.value), str(error)) from error


def text(value: str | bytes) -> str:
    """Text as every version of the binding gives it."""
    return value.decode() if isinstance(value, bytes) else value
