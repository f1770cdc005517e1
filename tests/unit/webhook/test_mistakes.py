"""docs/reference/admission.md says what the webhook says, and leaves no sentence out."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from tests.unit.webhook.mistakes import PAGE, REFUSED, WARNED, renewed, sentence
from webhook.pods import advice, asking, companion, direct, original, probes, validate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

MODULES = (advice, asking, companion, direct, original, probes, validate)
SAID = [sentence(given) for rows in (*REFUSED.values(), WARNED) for _, given in rows]


def test_the_page_holds_what_the_code_says() -> None:
    page = PAGE.read_text()
    assert renewed(page) == page, "run python -m tests.unit.webhook.mistakes"


@pytest.mark.parametrize("said", SAID)
def test_every_answer_is_one_sentence_that_fits(said: str) -> None:
    assert said[0] == said[0].upper() or said.startswith(("kyb.ai/", "nvidia.com/", "spec."))
    assert said[-1] in ".?"
    assert len(said) <= 300


def test_every_sentence_of_the_code_has_its_mistake() -> None:
    missing = [
        pattern
        for module in MODULES
        for pattern in patterns(module)
        if not any(re.search(pattern, said) for said in SAID)
    ]
    # Said of the cluster's set-up, not of a pod.
    assert [one for one in missing if "mutating" not in one] == []


def patterns(module: ModuleType) -> Iterator[str]:
    """Each text in the module that ends as a sentence does, with what is put in left open."""
    assert module.__file__
    tree = ast.parse(Path(module.__file__).read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inner = {id(part) for text in texts for part in text.values}
    for node in ast.walk(tree):
        if id(node) in docs or id(node) in inner:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        words = [part.value for part in parts if isinstance(part, ast.Constant)]
        fixed = [word for word in words if isinstance(word, str)]
        if fixed and fixed[-1].endswith(".") and any(" " in word for word in fixed):
            yield "".join(_pattern(part) for part in parts)


def _pattern(part: ast.AST) -> str:
    if isinstance(part, ast.Constant):
        return re.escape(str(part.value))
    match part:
        case ast.FormattedValue(value=ast.Attribute(value=ast.Name(id="keys"), attr=name)):
            return re.escape(str(getattr(keys, name)))
    return ".+"


def test_all_modules_with_sentences_are_looked_at() -> None:
    folder = Path(validate.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__main__", "__init__"}
    speaking = {
        name
        for name in names
        if any("write" in one for one in patterns(importlib.import_module(f"webhook.pods.{name}")))
    }
    assert speaking == {"asking", "original", "probes", "validate"}
