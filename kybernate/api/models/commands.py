"""A command as the file has it, in words: as a shell would take it apart, but no shell does."""

from __future__ import annotations

import shlex


def split(command: str) -> tuple[str, ...]:
    """The command's words. Lines that begin with # are left out, and a line that ends with \\
    continues in the next. Raises ValueError if a quotation mark has no end, if no word is there, or
    for a character that no program can be given."""
    lines = [line for line in command.splitlines() if not line.strip().startswith("#")]
    joined = "\n".join(_continued(line) for line in lines)
    try:
        words = tuple(shlex.split(joined))
    except ValueError as error:
        raise ValueError(f"the command can't be taken apart: {error}") from error
    if "\0" in joined:
        raise ValueError("the command has a character of value 0; leave it out")
    if not words:
        raise ValueError("the command is empty; write for example: vllm serve NAME --port ${PORT}")
    return words


def _continued(line: str) -> str:
    bare = line.strip()
    return f"{bare[:-1]} " if bare.endswith("\\") else line


def without_comments(command: str) -> str:
    """The command without lines that begin with #, so that no macro in them counts."""
    lines = command.splitlines()
    return "\n".join(line for line in lines if not line.strip().startswith("#"))
