"""docs/how-to/install/one-box.md can be followed from a clone, in the order of the page."""

from __future__ import annotations

import re

from tests.cluster.layout import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-to" / "install" / "one-box.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
UNIT = (REPOSITORY / "config" / "local" / "kybernate.service").read_text()


def test_the_command_is_installed_before_it_is_used() -> None:
    installs, *others = COMMANDS
    assert "make dist\n" in installs
    assert re.search(r"pip install build/dist/\S+\.whl$", installs, re.MULTILINE)
    assert all("kybernate " in one for one in others if "curl " not in one)


def test_it_is_installed_where_the_unit_starts_it() -> None:
    found = re.search(r"^ExecStart=%h/(\S+) ", UNIT, re.MULTILINE)
    assert found
    assert f" ~/{found[1]}\n" in COMMANDS[0]


def test_a_model_of_the_page_is_asked_for_where_the_page_listens() -> None:
    (asked,) = (one for one in COMMANDS if "curl " in one)
    listen = re.search(r"^listen: (\S+)$", PAGE, re.MULTILINE)
    model = re.search(r'"model": "([\w-]+)"', asked)
    assert listen
    assert model
    assert asked.count(f"curl http://{listen[1]}/") == 2
    assert f"\n  {model[1]}:\n" in PAGE
