"""Shells complete lines that somebody types at a terminal."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.kit.clients.kubectl import Kubectl

LIMIT_S = 60.0
PROMPT = "type> "
BEGIN_OF_LINE = "\x01"
SHELLS = {
    "bash": (".bashrc", f"PS1='{PROMPT}'", 'eval "$(kybernate completion bash)"'),
    # zsh completes nothing before this, which its own first start writes.
    "zsh": (
        ".zshrc",
        f"PS1='{PROMPT}'; autoload -U compinit; compinit -u -D",
        'eval "$(kybernate completion zsh)"',
    ),
    "fish": (
        ".config/fish/config.fish",
        f"function fish_prompt; echo -n '{PROMPT}'; end",
        "kybernate completion fish > ~/.config/fish/completions/kybernate.fish",
    ),
}
"""By shell: the file that it reads, what there is of it, and the line of commands.md."""


class Typist:
    """A shell at a terminal, and who types there."""

    def __init__(self, shell: str, environment: dict[str, str]) -> None:
        self._terminal, inner = pty.openpty()
        with os.fdopen(inner) as end:
            self._process = subprocess.Popen(
                ["setsid", "--ctty", shell, "-i"],
                stdin=end,
                stdout=end,
                stderr=end,
                env=environment,
            )
        self._shown = ""

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def types(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def sees(self, text: str) -> str:
        """Wait for this text: what was shown before it."""
        end = time.monotonic() + LIMIT_S
        while text not in self._shown:
            assert time.monotonic() < end, self._shown
            if select.select([self._terminal], [], [], 0.2)[0]:
                with suppress(OSError):
                    self._shown += os.read(self._terminal, 1 << 16).decode(errors="replace")
        before, _, self._shown = self._shown.partition(text)
        return before


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_typed_is_completed(shell: str, tmp_path: Path) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"this machine has no {shell}")
    reader = Kubectl(Path("/nonexistent/kubectl"), tmp_path, tmp_path / "none")
    environment = {**reader.environment, "HOME": str(tmp_path), "TERM": "dumb"}
    file, before, line = SHELLS[shell]
    start = tmp_path / file
    (start.parent / "completions").mkdir(parents=True)
    if shell == "fish":
        start.write_text(before)
        subprocess.run(["sh", "-c", line], env=environment, check=True)
    else:
        start.write_text(f"{before}\n{line}\n")
    with closing(Typist(program, environment)) as somebody:
        somebody.sees(PROMPT)
        # Only completed words are told: what is typed is on the screen, too, without the signs.
        somebody.types("kybernate sna\ta --tie\tnvme" + BEGIN_OF_LINE + "printf '<%s>' \r")
        somebody.sees("<kybernate><snapshot><a><--tier><nvme>")
