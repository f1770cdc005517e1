"""The Kubernetes API: raw JSON calls with deadlines, and watches that survive what clusters do."""

from __future__ import annotations

from .api import DEFAULT_TIMEOUT, PATCH_TYPES, Api, error_for, namespace_of
from .watch import OF_USERS, Source, Stream, Watcher, drop_managed_fields

__all__ = [
    "DEFAULT_TIMEOUT",
    "OF_USERS",
    "PATCH_TYPES",
    "Api",
    "Source",
    "Stream",
    "Watcher",
    "drop_managed_fields",
    "error_for",
    "namespace_of",
]
