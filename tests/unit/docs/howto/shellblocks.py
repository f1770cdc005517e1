"""The commands of a page: what its `sh` blocks would run, word by word."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = re.compile(r"^( *)```(?:sh|console)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_KEYWORDS = ("do", "then", "else")
_HEADS = ("for", "done", "fi", "in")


def commands(page: str) -> list[tuple[str, ...]]:
    """Each simple command of a page's blocks, without what only the shell reads."""
    found = [one for _, block in BLOCK.findall(page) for one in _simple(block)]
    return list(dict.fromkeys(found))


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
