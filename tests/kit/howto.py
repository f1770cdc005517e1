"""How-to pages as tests run them: line by line, with the tests' own names for the reader's."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import yaml

from tests.cluster.layout import REPOSITORY
from tests.unit.docs.howto.shellblocks import lines, manifests

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from tests.kit.clients.kubectl import Kubectl

HOW_TO = REPOSITORY / "docs" / "how-to"
ROWS = REPOSITORY / "tests" / "unit" / "docs" / "howto" / "howto.toml"
LIMIT_S = 250.0
"""For one command: seven seconds of work take a hundred while tests of servers have the machine."""
_VARIABLES = ".variables"


@dataclass(frozen=True, slots=True)
class Row:
    """What howto.toml says of a page.

    `test` does what the page tells. Where it runs the page's own lines, `means` has what stands on
    the page for names that the test gives, such as `{node}`; `elsewhere` has the beginnings of
    lines that this test doesn't run, each with the test that does or the reason why none does.
    Where it doesn't, `why` says the reason.
    """

    test: str
    means: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def runs(self) -> bool:
        """Whether the test runs the page's own lines."""
        return not self.why


def rows() -> dict[str, Row]:
    """The row of each page."""
    told = tomllib.loads(ROWS.read_text())
    return {name: Row(**one) for name, one in told.items()}


def text(name: str) -> str:
    """A page as it stands."""
    (page,) = HOW_TO.rglob(f"{name}.md")
    return page.read_text()


def entered(name: str) -> list[str]:
    """The lines of a page's blocks, in order."""
    return lines(text(name))


class Page:
    """A page whose lines are run where `config` lies beside the reader, as after a clone.

    A `with` fails at its end if a line of the page was neither run nor is `elsewhere`, and ends
    what lines with an `&` have begun. A variable that a line sets is there for the lines after it.
    """

    def __init__(self, name: str, kubectl: Kubectl, **values: str) -> None:
        self._name, self._row, self._lines = name, rows()[name], entered(name)
        self._beside: list[subprocess.Popen[str]] = []
        self._kubectl, self._values = kubectl, values
        self._left = [one for one in self._lines if not one.startswith(tuple(self._row.elsewhere))]
        self.config = kubectl.folder / "config"
        shutil.copytree(REPOSITORY / "config", self.config, dirs_exist_ok=True)

    @property
    def folder(self) -> Path:
        """Where its reader stands."""
        return self._kubectl.folder

    def another(self, name: str, **values: str) -> Page:
        """Another page, for the same reader."""
        return Page(name, self._kubectl, **{**self._values, **values})

    def variable(self, name: str) -> str:
        """What a line has set."""
        told = (self.folder / _VARIABLES).read_text()
        found: list[str] = re.findall(rf'^declare -- {name}="(.*)"$', told, re.MULTILINE)
        return found[-1]

    def sample(self, name: str) -> dict[str, Any]:
        """The object of a file of `config/samples`."""
        found: dict[str, Any] = yaml.safe_load(self._sample(name).read_text())
        return found

    def manifest(self, begins: str) -> str:
        """The page's YAML that begins so."""
        (found,) = (one for one in manifests(text(self._name)) if one.startswith(begins))
        return self._named(found, self._values)

    def changed(self, name: str, **spec: object) -> None:
        """Have that object say this in its `spec`."""
        found = self.sample(name)
        found["spec"] |= spec
        self._sample(name).write_text(yaml.safe_dump(found))

    def _sample(self, name: str) -> Path:
        return self.config / "samples" / f"{name}.yaml"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.end()
        assert kind is not None or not self._left, f"of the page nobody ran: {self._left}"

    def end(self) -> None:
        """End what lines with an `&` have begun."""
        while self._beside:
            one = self._beside.pop()
            one.terminate()
            one.communicate()

    def __call__(self, begins: str, *, limit: float = LIMIT_S, **values: str) -> str:
        """Run the line that begins so, and return what it prints. Fails if the line does.

        A newline at the end of `begins` is that of the line, which then is no longer than this.
        """
        with self.start(begins, **values) as process:
            try:
                said, wrong = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, (process.args, said, wrong)
        return said

    def start(self, begins: str, **values: str) -> subprocess.Popen[str]:
        """Run that line beside the test. One that ends with an `&` stays until the `with` ends."""
        line = self._named(self._line(begins), {**self._values, **values})
        if not line.endswith("&"):
            return self._run(line)
        self._beside.append(self._run(f"exec {line.removesuffix('&')}"))
        return self._beside[-1]

    def _run(self, line: str) -> subprocess.Popen[str]:
        known = f"[ ! -e {_VARIABLES} ] || . ./{_VARIABLES}"
        if sets := re.match(r"([A-Z]+)=", line):
            line += f"\ndeclare -p {sets[1]} >>{_VARIABLES}"
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"{known}\n{line}"],
            cwd=self._kubectl.folder,
            env=self._kubectl.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _line(self, begins: str) -> str:
        found = {one for one in self._lines if f"{one}\n".startswith(begins)}
        assert len(found) == 1, f"{begins!r} begins {found or self._lines} of the page"
        self._left = [one for one in self._left if one not in found]
        return found.pop()

    def _named(self, line: str, values: Mapping[str, str]) -> str:
        # The longest first: one may be a part of another.
        texts = sorted(self._row.means, key=len, reverse=True)
        every = "|".join(_whole(one) for one in texts)
        means = self._row.means
        return re.sub(every, lambda hit: means[hit[0]].format(**values), line) if every else line


def _whole(one: str) -> str:
    """That text, and no part of a longer word."""
    return rf"(?<![\w-]){re.escape(one)}(?![\w-])"
