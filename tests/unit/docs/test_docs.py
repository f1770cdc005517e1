"""The documents: links and anchors lead somewhere, diagrams are what the renderer understands."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("native/*/*.md")]
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
DIAGRAM = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
KINDS = ("flowchart", "sequenceDiagram", "stateDiagram-v2")
FOLDERS = {"start", "how-to", "concepts", "reference", "design", "results", "images"}


@functools.cache
def anchors(document: Path) -> frozenset[str]:
    """What GitHub makes of the headings: lower case, no punctuation, a number where one repeats."""
    found: list[str] = []
    for heading in HEADING.findall(FENCE.sub("", document.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


def by_name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(FENCE.sub("", document.read_text())):
        page = (document.parent / target).resolve() if target else document
        assert page.exists(), f"{document} links to {target}"
        if anchor and page.suffix == ".md":
            assert anchor in anchors(page), f"{document} links to {target}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_diagrams_can_be_drawn(document: Path) -> None:
    for diagram in DIAGRAM.findall(document.read_text()):
        assert diagram.split()[0] in KINDS
        # A semicolon ends a statement, also in the middle of a message: the diagram breaks there.
        assert ";" not in diagram
        # Nor has a state's name a hyphen.
        for ends in re.findall(r"^ *(\S+) --> ([^:\s]+)", diagram, re.MULTILINE):
            assert not diagram.startswith("stateDiagram") or "-" not in "".join(ends), ends


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_lines_and_cells_are_short(document: Path) -> None:
    for number, line in enumerate(document.read_text().splitlines(), 1):
        cells = re.split(r"(?<!\\)\|", line)[1:-1] if line.lstrip().startswith("|") else []
        longest = max((len(cell.strip()) for cell in cells), default=0)
        assert longest <= 200, f"line {number}: a cell of {longest} characters"
        assert len(line) <= 120, f"line {number}: {len(line)} columns"


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_tables_are_whole(document: Path) -> None:
    """A table without its head, or a row with other cells than its head, is shown as text."""
    text = FENCE.sub("", document.read_text())
    for table in re.findall(r"(?:^ *\|.*\n)+", text, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line.strip()) for line in table.splitlines()]
        assert set("".join(rows[1 % len(rows)])) <= set(" :-"), table.partition("\n")[0]
        assert {len(row) for row in rows} == {len(rows[0])}, table.partition("\n")[0]


def test_each_page_is_in_a_folder_of_its_kind() -> None:
    pages = {path.relative_to(REPOSITORY / "docs") for path in REPOSITORY.glob("docs/**/*.md")}
    lost = {page for page in pages if len(page.parts) > 1 and page.parts[0] not in FOLDERS}
    lost |= {page for page in pages if len(page.parts) == 1 and page.name != "README.md"}
    assert lost == set(), f"docs/ has the folders {sorted(FOLDERS)}; ADRs are in docs/design"


def test_the_map_leads_to_each_page() -> None:
    start = REPOSITORY / "docs" / "README.md"
    linked = {(start.parent / target).resolve() for target, _ in LINK.findall(start.read_text())}
    pages = {page for page in REPOSITORY.glob("docs/*/**/*.md") if page.parent.name != "design"}
    assert pages <= linked, "list it in docs/README.md"


def test_the_readme_is_one_screen_with_few_ways_on() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert text.count("\n") <= 60
    assert len(re.findall(r"(?<!!)\[[^\]]*\]\(", text)) <= 8


@pytest.mark.parametrize(
    ("bench", "row", "figures"),
    [
        ("node.wake", "what orchestration adds", ("p50", "p99")),
        ("node.recover", "agent killed", ("p50",)),
        ("node.park --workload redis", "Redis with 1 GiB", ("dump", "restore")),
    ],
)
def test_the_readmes_figures_are_the_newest(bench: str, row: str, figures: tuple[str, ...]) -> None:
    text = (REPOSITORY / "README.md").read_text()
    (line,) = (one for one in text.splitlines() if row in one)
    data = json.loads((REPOSITORY / "docs/results/benchmarks.json").read_text())
    (found,) = (one for one in data["benches"] if one["bench"] == bench)
    newest = max(found["runs"], key=lambda run: run["date"])
    told = {one["figure"]: one["value"] for one in newest["figures"]}
    for name in figures:
        value = told[name] if isinstance(told[name], list) else [told[name]]
        shown = "\N{EN DASH}".join(f"{one:g}" for one in value)
        assert f"{shown} " in line, name


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A [b](c.md), `d`!\n\n# A b, d\n")
    assert anchors(page) == {"a-b-d", "a-b-d-1"}
    for link in ("[x](none.md)", "[x](page.md#none)", "[x](#none)"):
        other = tmp_path / f"other{len(link)}.md"
        other.write_text(link)
        with pytest.raises(AssertionError):
            test_links_lead_somewhere(other)
