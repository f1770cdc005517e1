"""Each command of the how-to pages is run: ours by their own parsers, kubectl by itself without a
cluster, all of a page's together by the named tests of what the page tells.

Where such a test runs the page's own lines (tests/kit/howto.py), it is seen here that it names each
of them; that they do what the page says is seen where the test is run."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import kybernate.cli
import registry.commands
from tests.cluster.fetched import binaries
from tests.kit import howto
from tests.unit.docs.howto.shellblocks import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[4]
HOW_TO = REPOSITORY / "docs" / "how-to"
PAGES = [
    *sorted(HOW_TO.rglob("*.md")),
    REPOSITORY / "docs/start/first-steps.md",
    REPOSITORY / "README.md",
]
COMMANDS = sorted({one for page in PAGES for one in commands(page.read_text())})
OURS = ("kybernate", "kyb-registry", "kubectl", "make")
TOLD = howto.rows()
"""For each page a test that does for real what the page tells."""
RUN = sorted(name for name, row in TOLD.items() if row.runs)
"""Pages whose own lines are run."""
MOST_OTHERS = 4
"""Pages of which the table says why their lines aren't. Their number only shrinks."""
OTHERS = {
    "helm": "tests/integration/overlays/test_chart.py runs it on the same chart",
    "skopeo": "tests/integration/overlays pushes by it",
    "ctr": "tests/cluster imports the same files by it",
    "buildah": "makes the image that tests/e2e/node/test_runtime.py makes by itself",
    "curl": "asks the proxy of the reader's cluster",
    "grep": "of the shell",
    "tar": "of the shell",
    "cat": "of the shell",
    "printf": "of the shell",
    "echo": "of the shell",
    "sed": "of the shell",
    "cp": "of the shell",
    "rm": "of the shell",
    "mkdir": "of the shell",
    "ln": "of the shell",
    "python3": "makes an environment of the reader's",
    "~/.local/share/kybernate/bin/pip": "installs what tests/unit/images/test_wheel.py makes",
    "microk8s": "of the reader's MicroK8s",
    "systemctl": "of the reader's own systemd",
    "kill": "tests/integration/criu/test_clones.py sends the signal",
    "gdb": "tests/integration/criu/test_clones.py runs it",
    "py-spy": "tests/integration/criu/test_clones.py runs it",
}
"""Programs that aren't ours, with why no test of this file runs them."""


def by_words(command: tuple[str, ...]) -> str:
    return " ".join(command)[:60]


def test_each_page_has_a_test_that_does_it() -> None:
    assert set(TOLD) == {page.stem for page in HOW_TO.rglob("*.md")}


def is_there(named: str) -> bool:
    """Whether tests/ has this test, FILE::NAME."""
    file, _, name = named.partition("::")
    text = (REPOSITORY / "tests" / file).read_text()
    return re.search(rf"^(async )?def {name}\(", text, re.MULTILINE) is not None


@pytest.mark.parametrize("named", sorted({row.test for row in TOLD.values()}))
def test_that_test_is_there(named: str) -> None:
    assert is_there(named)


def test_no_page_goes_back_to_a_test_that_only_resembles_it() -> None:
    assert len(TOLD) - len(RUN) == MOST_OTHERS


@pytest.mark.parametrize("name", RUN)
def test_each_line_of_the_page_is_run_by_its_test_or_elsewhere(name: str) -> None:
    row, lines = TOLD[name], howto.entered(name)
    file = REPOSITORY / "tests" / row.test.partition("::")[0]
    texts = {one.value for one in _nodes(file) if isinstance(one, ast.Constant)}
    begins = {one for one in texts if isinstance(one, str) and len(one) > 10}
    assert f"{name}" in texts, "the test opens another page"
    for line in lines:
        assert f"{line}\n".startswith((*row.elsewhere, *begins)), line
    for begin, where in row.elsewhere.items():
        assert any(line.startswith(begin) for line in lines), f"no line begins so: {begin}"
        assert "::" not in where or is_there(where), where
    for text in row.means:
        assert text in howto.text(name), f"the page has no {text}"


def _nodes(file: Path) -> Iterator[ast.AST]:
    """All of a module of tests, and of those beside it whose names it imports."""
    module = ast.parse(file.read_text())
    yield from ast.walk(module)
    folder = ".".join(file.parent.relative_to(REPOSITORY).parts)
    froms = [one.module or "" for one in module.body if isinstance(one, ast.ImportFrom)]
    for package, _, name in (one.rpartition(".") for one in froms):
        if package == folder:
            yield from ast.walk(ast.parse((file.parent / f"{name}.py").read_text()))


CLAIMS = sorted(
    {one for page in PAGES for one in re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text())}
)


@pytest.mark.parametrize(("file", "name"), CLAIMS, ids=[name for _, name in CLAIMS])
def test_the_test_of_a_claim_is_there(file: str, name: str) -> None:
    text = (REPOSITORY / "tests" / file).read_text()
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)


def test_each_scenario_has_its_page_and_the_test_that_runs_it() -> None:
    text = (REPOSITORY / "docs" / "README.md").read_text().partition("### Scenarios")[2]
    table = text.partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| \[([a-z0-9-]+)\]\((\S+)\) \| `(\S+)` \|$", table, re.MULTILINE)
    assert len(rows) == 16 == table.count("\n| ") - 1
    for name, page, test in rows:
        assert (REPOSITORY / "docs" / page).stem == name
        named = (TOLD[name].test, *TOLD[name].elsewhere.values())
        files = [one.partition("::")[0] for one in named]
        file = next(one for one in files if Path(one).stem == test)
        assert file.startswith(("e2e/", "integration/")), "a stand-in shows no scenario"


def test_no_program_is_run_that_nobody_knows() -> None:
    assert {one[0] for one in COMMANDS} <= {*OURS, *OTHERS}
    assert len(COMMANDS) > 50


@pytest.mark.parametrize("command", [one for one in COMMANDS if one[0] == "make"], ids=by_words)
def test_make_has_the_target(command: tuple[str, ...]) -> None:
    targets = [word for word in command[1:] if "=" not in word]
    rules = (REPOSITORY / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", rules, re.MULTILINE) for target in targets)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the reader stands: with the folders and files of earlier steps."""
    for name in ("pki", "pki-new", "keys", "PLACE"):
        (tmp_path / name).mkdir()
    for name in (
        *("criu", "ledger.json", "models.csv", "trace.csv", "tenants.csv", "day.csv", "costs.json"),
        *("llama.tar", "transport.key", "trust-cluster.pub"),
    ):
        (tmp_path / name).write_text("{}")
    (tmp_path / "config").symlink_to(REPOSITORY / "config")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_pods(command: tuple[str, ...]) -> tuple[str, ...]:
    """What `kubectl exec` runs in a pod of ours, or `kubectl kyb` by our plugin, as if it were run
    here."""
    if command[:2] == ("kubectl", "kyb"):
        return ("kybernate", *command[2:])
    _, _, inner = " ".join(command).partition(" -- ")
    words = command[command.index("--") + 1 :] if inner else command
    if words[:3] == ("python3", "-m", "kybernate.cli"):
        return ("kybernate", *words[3:])
    return ("kyb-registry", *words[3:]) if words[:3] == ("python3", "-m", "registry") else words


MINE = sorted(
    {in_pods(one) for one in COMMANDS if in_pods(one)[0] in ("kybernate", "kyb-registry")}
)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", MINE, ids=by_words)
def test_our_commands_take_these_words(command: tuple[str, ...]) -> None:
    program, *words = command
    if program == "kyb-registry":
        parsed(registry.commands.COMMANDS[words[0]], words[1:])
    else:
        parsed(kybernate.cli.main, words)


def parsed(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """Raises click.UsageError for words that the command doesn't take; runs nothing."""
    context = command.make_context(command.name, words, parent=parent)
    with context:
        if isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            _, inner, words = command.resolve_command(context, rest)
            assert inner is not None
            parsed(inner, words, context)


def test_a_word_that_is_none_is_noticed() -> None:
    for words in (
        ["agent", "parc", "x"],
        ["agent", "park"],
        ["agent", "park", "x", "--teir", "ram"],
    ):
        with pytest.raises(click.UsageError):
            parsed(kybernate.cli.main, words)


@pytest.fixture(scope="session")
def kubectl() -> Path:
    return binaries.ensure(("kubectl",), print).path("kubectl")


def asked(kubectl: Path, command: tuple[str, ...]) -> str:
    """What kubectl says to it where no API server answers."""
    words = [word if word != "OVERLAY" else "config/default" for word in command[1:]]
    at = words.index("--") if "--" in words else len(words)
    words[at:at] = ["--server=http://127.0.0.1:1", "--request-timeout=2s"]
    done = subprocess.run(
        [kubectl, *words],
        cwd=REPOSITORY,
        input="",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stderr


OF_KUBECTL = [one for one in COMMANDS if one[0] == "kubectl" and one[1] != "kyb"]


@pytest.mark.parametrize("command", OF_KUBECTL, ids=by_words)
def test_kubectl_takes_these_words(kubectl: Path, command: tuple[str, ...]) -> None:
    said = asked(kubectl, command)
    assert re.search(r"refused|error reading pki|no objects passed", said), said


def test_a_word_that_kubectl_does_not_know_is_noticed(kubectl: Path) -> None:
    for words in (
        "kubectl rolout status ds/x",
        "kubectl get pods --al",
        "kubectl apply -k config/none",
    ):
        assert not re.search("refused", asked(kubectl, tuple(words.split())))


def test_objects_of_ours_have_these_names() -> None:
    installed = "".join(path.read_text() for path in (REPOSITORY / "config").rglob("*.yaml"))
    named = {
        name
        for one in COMMANDS
        for name in re.findall(
            r"(?:deploy|deployment|ds|generic|configmap)[/ ]([a-z-]+)\b", " ".join(one)
        )
    }
    assert len(named) > 8
    assert {one for one in named if one not in installed and one != "kyb-"} == set()
