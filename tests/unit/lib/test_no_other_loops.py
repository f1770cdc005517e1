"""Retries and locks by key are `kybernate.lib`'s: no part of the product has a loop of its own that
pauses after an error and tries again, or a map of locks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PARTS = (
    "kybernate extender webhook deviceplugin nodeagent proxy registry sidecar controller".split()  # noqa: SIM905
)
PAUSES = {"sleep", "wait", "wait_for"}
LOCKS, MAPS = {"Lock", "RLock", "Condition", "Semaphore"}, {"Mapping", "WeakValueDictionary"}
LEAVES = (ast.Raise, ast.Return, ast.Break)
OTHERS = {
    "sidecar": "has the standard library alone",
    "kybernate/adapters/cuda/helper.py": "a process of 3 MiB, which would import asyncio",
    "kybernate/adapters/nvml/events.py": "waits for another session of NVML, too",
    "kybernate/runtime/lead.py": "renews a lease, and waits after each round",
    "extender/state/learner.py": "looks sooner where it may not look yet",
    "proxy/agents.py": "holds a session, and has another pause for an agent that is long gone",
    "nodeagent/app/wiring.py": "waits for an event before each call",
}


def loops(source: str) -> list[int]:
    """Lines of the loops that pause, and survive an error."""
    return [
        one.lineno
        for one in ast.walk(ast.parse(source))
        if isinstance(one, ast.While | ast.For | ast.AsyncFor) and _tries_again(one)
    ]


def _tries_again(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    body = [one for part in loop.body for one in _within(part)]
    test = list(ast.walk(loop.test)) if isinstance(loop, ast.While) else []
    pauses = any(isinstance(one, ast.Call) and _name(one) in PAUSES for one in body + test)
    survives = any(
        isinstance(one, ast.ExceptHandler) and not isinstance(one.body[-1], LEAVES) for one in body
    )
    return pauses and survives


def _within(node: ast.AST) -> list[ast.AST]:
    """It and all in it, but other functions and loops, which are looked at by themselves."""
    others = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.While | ast.For
    if isinstance(node, others):
        return []
    return [node, *(one for child in ast.iter_child_nodes(node) for one in _within(child))]


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@pytest.mark.parametrize("part", PARTS)
def test_no_part_retries_by_a_loop_of_its_own(part):
    found = {
        str(file.relative_to(ROOT)): lines
        for file in sorted((ROOT / part).rglob("*.py"))
        if "gen" not in file.parts
        if (lines := loops(file.read_text()))
    }
    lib = {"kybernate/lib/retry.py", "kybernate/lib/rounds.py"}
    left = {name for name in found.keys() - lib if not name.startswith(tuple(OTHERS))}
    assert not left, f"call kybernate.lib.retry in place of a loop: {sorted(left)}"


def maps_of_locks(source: str) -> list[int]:
    """Lines with a value of which the annotation says that it has a lock for each key."""
    return [
        one.lineno
        for one in ast.walk(ast.parse(source))
        if isinstance(one, ast.AnnAssign) and _maps_locks(one.annotation)
    ]


def _maps_locks(said: ast.expr) -> bool:
    words = {
        one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")
        for one in ast.walk(said)
    }
    return bool(words & LOCKS) and any(
        word.lower().endswith("dict") or word in MAPS for word in words
    )


@pytest.mark.parametrize("part", PARTS)
def test_no_part_has_a_map_of_locks_of_its_own(part):
    found = {
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / part).rglob("*.py"))
        if "gen" not in file.parts
        if maps_of_locks(file.read_text())
    }
    assert not found, f"use kybernate.lib.keyedlock: {sorted(found)}"


@pytest.mark.parametrize(
    "source",
    [
        "self.a: dict[str, asyncio.Lock] = {}",
        "a: defaultdict[str, Lock] = defaultdict(Lock)",
        "a: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()",
        "a: dict[str, tuple[threading.Lock, int]] = {}",
    ],
)
def test_such_maps_are_found(source):
    assert maps_of_locks(source) == [1]
    assert not maps_of_locks("a: KeyedLocks[str, asyncio.Lock] = KeyedLocks(asyncio.Lock)")


RETRY = """
while True:
    try:
        call()
        break
    except OSError:
        time.sleep(1)
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (RETRY, [2]),
        ("while not ready():\n    time.sleep(1)", []),
        ("while True:\n    try:\n        call()\n    except OSError:\n        pass", []),
        (RETRY.replace("time.sleep(1)", "raise"), []),
        (RETRY.replace("time.sleep(1)", "return") + "    time.sleep(1)\n", []),
        (RETRY + "    time.sleep(1)\n", [2]),
        (
            "while not stop.wait(1):\n    try:\n        go()\n    except OSError:\n        log()",
            [1],
        ),
    ],
)
def test_such_loops_are_found(source, found):
    assert loops(source) == found
