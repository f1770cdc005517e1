"""What can't be dumped, found before anything is stopped, and CRIU's own reasons in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .container import Container

GHOST_LIMIT = 256 << 20
"""Bytes of a deleted file that is still open, up to which it becomes part of the image."""


def find(container: Container) -> tuple[str, ...]:
    """Sentences; empty if nothing is known against a dump."""
    return ()


def extra_options(container: Container) -> list[str]:
    """Options of a dump that what the tree has open asks for."""
    return []


def from_log(said: list[str]) -> str:
    """Why CRIU refused, if it is of a kind that it always refuses; else empty."""
    return ""
