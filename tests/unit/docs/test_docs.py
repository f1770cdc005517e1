"""The documents: links lead somewhere, diagrams are what the renderer understands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("native/*/*.md")]
)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
DIAGRAM = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
KINDS = ("flowchart", "sequenceDiagram", "stateDiagram-v2")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_and_diagrams(document: Path) -> None:
    text = document.read_text()
    for target in LINK.findall(text):
        assert (document.parent / target).exists(), f"{document} links to {target}"
    for diagram in DIAGRAM.findall(text):
        assert diagram.split()[0] in KINDS
        # A semicolon ends a statement, also in the middle of a message: the diagram breaks there.
        assert ";" not in diagram
