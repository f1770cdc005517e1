"""JSON Patch (RFC 6902): the operations that make one document into another. Pure."""

from __future__ import annotations

from typing import Any


def diff(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """The operations, in order, that turn `old` into `new`; none if they are equal.

    Lists are compared by position: changed items in place, new ones appended; a list that became
    shorter is replaced as a whole.
    """
    if old == new and type(old) is type(new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return _diff_objects(old, new, path)
    if isinstance(old, list) and isinstance(new, list) and len(old) <= len(new):
        common = [
            step
            for index, item in enumerate(old)
            for step in diff(item, new[index], f"{path}/{index}")
        ]
        added = [{"op": "add", "path": f"{path}/-", "value": item} for item in new[len(old) :]]
        return common + added
    return [{"op": "replace", "path": path, "value": new}]


def _diff_objects(old: dict[str, Any], new: dict[str, Any], path: str) -> list[dict[str, Any]]:
    steps = [{"op": "remove", "path": f"{path}/{_escape(key)}"} for key in old if key not in new]
    for key, value in new.items():
        where = f"{path}/{_escape(key)}"
        if key in old:
            steps += diff(old[key], value, where)
        else:
            steps.append({"op": "add", "path": where, "value": value})
    return steps


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
