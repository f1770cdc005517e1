"""The commands of a page: what its `sh` blocks would run, line by line and word by word."""

from __future__ import annotations

import re
import shlex
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = re.compile(r"^( *)```(?:sh|console)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
YAML = re.compile(r"^( *)```yaml\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_KEYWORDS = ("do", "then", "else")
_HEADS = ("for", "done", "fi", "in")


def commands(page: str) -> list[tuple[str, ...]]:
    """Each simple command of a page's blocks, without what only the shell reads."""
    found = [one for _, block in BLOCK.findall(page) for one in _simple(block)]
    return list(dict.fromkeys(found))


def manifests(page: str) -> list[str]:
    """A page's blocks of YAML."""
    return [textwrap.dedent(block) for _, block in YAML.findall(page)]


def lines(page: str) -> list[str]:
    """What a reader enters of a page's blocks, one after the other: each line with those that the
    shell reads on for, such as the body of a loop."""
    found: list[str] = []
    for _, block in BLOCK.findall(page):
        begun: list[str] = []
        for line in textwrap.dedent(block).splitlines():
            begun.append(line)
            if _whole("\n".join(begun)):
                found.append("\n".join(begun))
                begun = []
        assert not begun, f"the shell reads on after: {begun}"
    return [one for one in found if one.strip()]


def _whole(text: str) -> bool:
    """Whether the shell would run this and not read on."""
    if text.endswith("\\"):
        return False
    try:
        words = _tokens(text)
    except ValueError:
        return False
    return words.count("do") == words.count("done")


def _simple(block: str) -> Iterator[tuple[str, ...]]:
    for line in block.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*_tokens(line), ";"]:
            if not re.fullmatch(r"[;&|()<>]+", word):
                words.append(word)
                continue
            if command := _stripped(words):
                yield command
            # What follows a redirection is a file's name.
            words = [">"] if set(word) <= {"<", ">"} else []


def _tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    return list(lexer)


def _stripped(words: list[str]) -> tuple[str, ...]:
    """A command without keywords and settings of variables before it."""
    while words and (words[0] in _KEYWORDS or re.match(r"[A-Za-z_]+=", words[0])):
        words = words[1:]
    return () if not words or words[0] in (*_HEADS, ">") else tuple(words)
