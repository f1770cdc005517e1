"""docs/admission.md says what the webhook says, and leaves no sentence out."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.webhook.mistakes import PAGE, REFUSED, WARNED, renewed, sentence
from webhook import advice, asking, companion, original, probes, validate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

MODULES = (advice, asking, companion, original, probes, validate)
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
        fragment
        for module in MODULES
        for fragment in sentences(module)
        if not any(fragment in said for said in SAID)
    ]
    # Said of the cluster's set-up, not of a pod.
    assert [one for one in missing if "not what it wrote" not in one] == []


def sentences(module: ModuleType) -> Iterator[str]:
    """The longest fixed part of each text in the module that ends as a sentence does."""
    assert module.__file__
    tree = ast.parse(Path(module.__file__).read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if id(node) in docs or id(node) in inner:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        texts = [part.value for part in parts if isinstance(part, ast.Constant)]
        words = [text for text in texts if isinstance(text, str)]
        if words and words[-1].endswith(".") and any(" " in word for word in words):
            yield max(words, key=len)


def test_all_modules_with_sentences_are_looked_at() -> None:
    folder = Path(validate.__file__).parent
    speaking = {
        path.stem
        for path in folder.glob("*.py")
        if any(" the pod" in one or "; write" in one for one in _all(path.stem))
    }
    assert speaking <= {module.__name__.rpartition(".")[2] for module in MODULES}


def _all(name: str) -> list[str]:
    return list(sentences(importlib.import_module(f"webhook.{name}")))
