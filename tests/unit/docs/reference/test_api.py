"""reference/node/api.md and reference/metrics.md say what the code does, and leave nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kybernate.core.seat.operations import Kind, Progress
from kybernate.gen import agent_pb2
from kybernate.settings.agent import AgentSettings
from nodeagent.api import doorkeeper
from nodeagent.operations import record as operation

DOCS = Path(__file__).parents[4] / "docs" / "reference"
API = re.sub(r"\n +", " ", (DOCS / "node" / "api.md").read_text())
TABLE = API[API.index("## Calls") : API.index("### The device plugin's")]
CALLS = agent_pb2.DESCRIPTOR.services_by_name["NodeAgent"].methods


@pytest.mark.parametrize("call", [method.name for method in CALLS])
def test_every_call_is_in_the_table_with_its_callers_and_has_words(call: str) -> None:
    (row,) = re.findall(rf"^\| `{call}` \| ([^|]+) \|", TABLE, re.MULTILINE)
    assert {one.strip() for one in row.split(",")} == doorkeeper.CALLERS[call]
    assert len(re.findall(rf"`{call}`", API)) > 1, f"{call} is in the table only"


def test_no_call_is_described_that_does_not_exist() -> None:
    rows = re.findall(r"^\| `([A-Z]\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", TABLE, re.MULTILINE)
    assert set(rows) <= {method.name for method in CALLS}


def test_the_limits_are_those_of_the_code() -> None:
    settings = AgentSettings(node="n1")
    for words in (
        f"- a text: {doorkeeper.TEXT_LIMIT} characters, printable; `why` {doorkeeper.WHY_LIMIT}, ",
        f"the name of an artifact {doorkeeper.STATE_LIMIT}\n",
        f"- a list: {doorkeeper.LIST_LIMIT} entries\n",
        f"{settings.api_calls_per_s:g} a second, {settings.api_burst} at once",
        f"- streams of one peer: {settings.api_streams} open",
        f"({settings.operation_limit_s:g} s)",
        f"The last {settings.operations_kept} that have ended",
    ):
        assert words in API, words


@pytest.mark.parametrize("code", sorted({code.name for _, code in doorkeeper._CODES}))
def test_every_status_is_explained(code: str) -> None:
    assert f"`{code}`" in API


@pytest.mark.parametrize("state", [one.value for one in Progress])
def test_every_state_of_an_operation_is_explained(state: str) -> None:
    assert f"| `{state}` |" in API


def test_kinds_have_words_for_events() -> None:
    for kind in Kind:
        one = operation.Operation("n", kind, operation.PodUid("u"), "", "", "", "node", 0, 0)
        assert operation.words(one).endswith("by node")


def test_every_event_is_listed() -> None:
    told = re.compile(
        r'"(?:Normal|Warning)",\s*"([A-Z]\w+)"(?: if \w+ else "([A-Z]\w+)")?'
        r'|\bevent(?:: str)? = "([A-Z]\w+)"'
    )
    found = {
        name
        for file in (DOCS.parents[1] / "nodeagent").rglob("*.py")
        for names in told.findall(file.read_text())
        for name in names
        if name
    }
    assert len(found) > 8
    text = (DOCS / "metrics.md").read_text()
    assert {name for name in found if f"`{name}`" not in text} == set()
