"""One containerd for all of these tests; a container for each."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from kybernate.errors import KybernateError
from tests.kit.node.containers import Node, Wish
from tests.kit.node.parking import Seat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOOLS = ("ip", "unshare", "gcc", "make", "apt-get")


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"containers on this machine need root and {', '.join(missing or TOOLS)}")
    try:
        made = Node(f"kyc{os.getpid() % 1000}", print)
    except KybernateError as error:
        pytest.skip(f"a node for containers can't be made here: {error}")
    yield made
    made.close()


@pytest.fixture
def seat(node: Node) -> Iterator[Callable[..., Seat]]:
    """Starts a container as wished, whose tree can be parked."""
    started: list[Seat] = []

    def start(*command: str, **wish: object) -> Seat:
        container = node.start(Wish(command=command, **wish))  # type: ignore[arg-type]
        started.append(Seat(node, container))
        return started[-1]

    yield start
    for one in started:
        node.discard(one.container)
        one.close()
