"""The words that docs/reference/glossary.md replaces, as patterns, and where they still stand."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REPOSITORY = Path(__file__).parents[3]
PAGES = sorted(
    [*REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
)
PRODUCT = (
    "controller", "deviceplugin", "extender", "kybernate", "nodeagent", "proxy", "registry",
    "sidecar", "webhook",
)  # fmt: skip
PROSE_LIMIT = 20
CODE_LIMIT = 40
"""Of docstrings and comments; it only gets smaller."""
STAY = {"anew", ".anew"}
"""Strings of the journal and of folders' names, on disk."""

PROSE = {
    "saved state": r"saved states?",
    "what was saved": r"what (?:was|is|were) saved",
    "save game": r"save[- ]games?",
    "below RAM": r"below RAM",
    "handing over": r"hand(?:s|ed|ing)? over",
    "going": r"(?:what|states? that) (?:is|are) going",
    "move of a state": r"moves? (?:of|between) (?:a )?states?",
    "take over": r"(?:take|takes|took|taking|taken) over",
    "of a line": r"of a line|in each line",
    "what a pod left": r"what (?:a |the |that |its )?(?:pods?|it) (?:has |have )?left",
    "kept state": r"kept states?|is kept for people",
    "arrived state": r"arrived states?|what has arrived",
    "called for": r"called for(?! \d)",
    "stands apart": r"(?:stands?|stood|set) apart",
    "doomed": r"doomed",
    "go on": r"(?:go|goes|going|gone|went) on(?! to)",
    "anew": r"anew",
}
"""Each word of the glossary's "not" column, as it is written in sentences."""

NAMES = {
    "saved state": r"saved_(state|row)s?",
    "save game": r"save_?games?",
    "below RAM": r"below(_.+)?|.+_below|.*below_?ram.*",
    "handing over": r".*hand(ing|ed)?_over.*",
    "going": r"goings?",
    "take over": r".*take[ns]?_?over.*",
    "of a line": r"own_lines|lines?_of",
    "what a pod left": r"left|leavers?",
    "kept state": r"kept",
    "arrived state": r"arrived|arrivals?",
    "called for": r"(.+_)?call(ed|s)?_for(_.+)?",
    "stands apart": r"(.+_)?apart",
    "doomed": r"doomed",
    "go on": r"(.+_)?(go|goes|going|gone|went)_on(_.+)?",
    "anew": r"(.+_)?anew(_.+)?",
}
"""The same as names: of modules, classes, functions, fields and constants, in lower case."""

_ANY_NAME = re.compile("|".join(f"(?:{one})" for one in NAMES.values()))
_ANY_PROSE = re.compile("|".join(rf"\b(?:{one})\b" for one in PROSE.values()), re.IGNORECASE)


def in_prose() -> dict[str, list[str]]:
    """The sentences of each word, with their pages; code and targets of links don't count."""
    found: dict[str, list[str]] = {word: [] for word in PROSE}
    for page in PAGES:
        text = prose(page.read_text())
        for word, pattern in PROSE.items():
            for hit in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
                around = text[max(0, hit.start() - 40) : hit.end() + 40]
                found[word].append(f"{page.relative_to(REPOSITORY)}: …{around}…")
    return found


def in_code() -> tuple[list[str], list[str]]:
    """Where they stand in strings that people may see, and in docstrings and comments."""
    seen: list[str] = []
    read: list[str] = []
    for file in sources():
        text, where = file.read_text(), str(file.relative_to(REPOSITORY))
        comments = [
            one.string
            for one in tokenize.generate_tokens(io.StringIO(text).readline)
            if one.type == tokenize.COMMENT
        ]
        docstrings, strings = texts(ast.parse(text))
        seen += [f"{where}: {one}" for one in strings if one not in STAY and _ANY_PROSE.search(one)]
        read += [
            f"{where}: {hit[0]}"
            for one in (*docstrings, *comments)
            for hit in _ANY_PROSE.finditer(re.sub(r"\s+", " ", one))
        ]
    return seen, read


def texts(module: ast.Module) -> tuple[list[str], list[str]]:
    """Its docstrings, those of constants and fields too, and its other strings."""
    bodies = [getattr(one, "body", ()) for one in ast.walk(module)]
    alone = {
        id(one.value)
        for body in bodies
        if isinstance(body, list)
        for one in body
        if isinstance(one, ast.Expr)
    }
    every = [one for one in ast.walk(module) if isinstance(one, ast.Constant)]
    docstrings, strings = [], []
    for one in every:
        if isinstance(one.value, str):
            (docstrings if id(one) in alone else strings).append(one.value)
    return docstrings, strings


def sources() -> Iterator[Path]:
    """The product's files that people write."""
    for folder in PRODUCT:
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            if not file.stem.endswith("_pb2"):
                yield file


def prose(markdown: str) -> str:
    """A page without code, targets of links and the glossary's own "not" column."""
    text = re.sub(r"^( *)```.*?^\1```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]+`", "`", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    if "| say | not | meaning |" in text:
        text = text.partition("| say | not | meaning |")[0] + text.partition("## Seats")[2]
    return re.sub(r"\s+", " ", text)


@functools.cache
def in_names() -> Mapping[str, frozenset[str]]:
    """Such names that are given in the product, by where: `names`, or `within`."""
    found: dict[str, set[str]] = {"names": set(), "within": set()}
    for file in sources():
        module = ast.parse(file.read_text())
        for where, names in ("names", named(file.stem, module)), ("within", within(module)):
            found[where].update(name for name in names if _ANY_NAME.fullmatch(snake(name)))
    return {where: frozenset(names) for where, names in found.items()}


def named(stem: str, module: ast.Module) -> Iterator[str]:
    """Names of the module, its constants, and all classes, functions, fields, members of
    enumerations and attributes in it."""
    yield stem
    yield from _assigned(module.body)
    for one in ast.walk(module):
        match one:
            case ast.ClassDef():
                yield one.name
                yield from _assigned(one.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield one.name
            case ast.Attribute(ctx=ast.Store()):
                yield one.attr


def within(module: ast.Module) -> Iterator[str]:
    """Names of parameters, and of what is assigned anywhere."""
    for one in ast.walk(module):
        match one:
            case ast.arg():
                yield one.arg
            case ast.Name(ctx=ast.Store()):
                yield one.id
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (one.id for one in targets if isinstance(one, ast.Name))


def snake(name: str) -> str:
    """`_TakenOver` as taken_over."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")


def allowed() -> dict[str, dict[str, str]]:
    """Names that stay, with the reason, by where as `in_names` has them."""
    return tomllib.loads((Path(__file__).parent / "words.toml").read_text())
