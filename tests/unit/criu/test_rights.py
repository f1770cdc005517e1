"""What a tree may do and the agent couldn't give back is told before its dump."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu.checks import rights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Write = Callable[..., Mapping[str, str]]

PLAIN = 0x00000000A80425FB
"""What containerd gives every container."""


@pytest.fixture
def status(tmp_path: Path) -> Write:
    def write(bounds: int, *, confined: bool = False, filtered: bool = False) -> Mapping[str, str]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        lines = [
            f"NoNewPrivs:\t{confined:d}",
            f"Seccomp:\t{2 * filtered}",
            f"CapBnd:\t{bounds:016x}",
        ]
        path.write_text("\n".join(["Name:\tx", *lines, ""]))
        return rights.read(str(path))

    return write


def test_nothing_is_said_where_the_agent_has_as_much(
    status: Write,
) -> None:
    assert not list(rights.lacking(status(PLAIN), status(PLAIN | 1 << 21)))
    assert not list(rights.lacking(status(0, confined=True, filtered=True), status(PLAIN)))


def test_a_capability_is_named(status: Write) -> None:
    (said,) = rights.lacking(status(PLAIN | 1 << 16 | 1 << 50), status(PLAIN))
    assert said.startswith("may have SYS_MODULE, number 50, which the agent could not give back")


def test_an_agent_that_may_gain_no_rights_gives_none(
    status: Write,
) -> None:
    own = status(PLAIN, confined=True)
    (said,) = rights.lacking(status(PLAIN), own)
    assert "allowPrivilegeEscalation" in said
    assert not list(rights.lacking(status(PLAIN, confined=True), own))


def test_an_agent_with_a_filter_recreates_nothing_without_one(
    status: Write,
) -> None:
    own = status(PLAIN, filtered=True)
    (said,) = rights.lacking(status(PLAIN), own)
    assert "seccomp" in said
    assert not list(rights.lacking(status(PLAIN, filtered=True), own))


def test_names_are_those_of_the_kernel() -> None:
    header = Path("/usr/include/linux/capability.h")
    if not header.exists():
        pytest.skip("needs the kernel's headers (linux-libc-dev)")
    found = re.findall(r"^#define CAP_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    assert {int(number): name for name, number in found} == dict(enumerate(rights._NAMES))
