"""A pod's workload moves with its state, to the other node or to another GPU of its own, whichever
agent dies on the way."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.e2e.tiers.test_restores import Site, ask, pod, reader, seats, site
from tests.kit.clients.models import Models
from tests.kit.howto import Page
from tests.kit.pods import PODS, ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.clients.kubectl import Kubectl
    from tests.kit.clients.models import Answer
    from tests.kit.pods import Pods

    Json = dict[str, Any]

pytestmark = pytest.mark.e2e

__all__ = ["reader", "seats", "site"]


def agent(site: Site, node: str, *words: str, limit: float = 90.0) -> Json:
    """What `kybernate agent` on a node answers."""
    socket = f"/proc/{site.cluster.node(node).pid}/root{keys.AGENT_SOCKET}"
    command = [sys.executable, "-m", "kybernate.cli", "agent", "--socket", socket, *words, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit, check=False, cwd=REPOSITORY
    )
    assert done.stdout, done.stderr
    found: Json = json.loads(done.stdout)
    return found


def operation(site: Site, name: str) -> Json:
    """How far a move is; nothing while its agent is away."""
    try:
        listed = agent(site, "n1", "operations", "--all")
    except AssertionError:
        return {}
    found: Json = next((one for one in listed if one["name"] == name), {})  # type: ignore[call-overload]
    return found


def begun(site: Site, seats: Pods, node: str = "n2") -> tuple[str, str, Answer]:
    """A pod that has answered twice, and its successor, which waits: UIDs, and the last answer."""
    api = site.cluster.api()
    first = api.post(PODS, pod("a", "n1", require_group="G0"))["metadata"]["uid"]
    assert ask(seats, "a").counter == 1
    last = ask(seats, "a")
    wish = {"restore_from": f"pod/{first}", "restore_else": "fail", "require_group": "G1"}
    there = pod("b", node, **wish)
    second = api.post(PODS, there)["metadata"]["uid"]
    return first, second, last


def moved(
    site: Site,
    seats: Pods,
    uids: tuple[str, str],
    last: Answer,
    node: str = "n2",
    *,
    ends: Callable[[], object] = lambda: None,
) -> None:
    """The successor goes on where the other one was, and that one never again."""
    answer = ask(seats, "b")
    assert (answer.status, answer.counter, answer.intact) == (200, last.counter + 1, True)
    for what in ("boot", "pid"):
        assert answer.body["kyb"][what] == last.body["kyb"][what]
    claim = site.registry.pod("default", uids[0])
    assert (claim.successor, claim.successor_node) == (uids[1], node)

    def left() -> bool:
        told = site.seat("n1", "a")
        return (told.get("state"), told.get("tier")) == ("parked", "nvme")  # once it is told

    wait_until(left, 60, lambda: f"the one that left is {site.seat('n1', 'a')}")
    assert ask(seats, "b").counter == last.counter + 2
    ends()
    seats.delete(["a"])
    seats.gone(["a"], 30)
    assert ask(seats, "b").counter == last.counter + 3


def test_a_running_pod_goes_on_on_the_other_node(site: Site, seats: Pods, reader: Kubectl) -> None:
    """As docs/how-to/workloads/move-a-workload.md has it."""
    page = Page("move-a-workload", reader)
    *uids, last = begun(site, seats)
    assert "Pod b is looked for" in page("kybernate agent move shop/llama --to llama-2 --dry-run")
    page("kybernate agent save")
    assert ask(seats, "a").counter == last.counter + 1
    last = ask(seats, "a")
    said = page("kybernate agent move shop/llama --to llama-2\n")
    assert "b on node n2 continues" in said
    with page:
        moved(site, seats, (uids[0], uids[1]), last, ends=lambda: page("kubectl -n shop delete"))


def test_a_running_pod_goes_on_on_another_gpu_of_its_node(site: Site, seats: Pods) -> None:
    *uids, last = begun(site, seats, "n1")
    counted: list[int] = []
    over = threading.Event()

    def ask_on() -> None:
        """Whoever calls the model, by the proxy: it waits for a moment, and counts on."""
        models = Models(site.cluster.proxy_url)
        while not over.is_set():
            answer = models.ask("toy", limit=90)
            counted.append(answer.counter if answer.status == 200 and answer.intact else -1)
        models.close()

    caller = threading.Thread(target=ask_on)
    caller.start()
    try:
        done = agent(site, "n1", "move", "a", "--to", "b")
        assert done["state"] == "succeeded", done
        assert "b on node n1 continues" in done["sentence"]
        seats.wait(["b"], ready, 90, "Ready")
        since = len(counted)
        wait_until(lambda: len(counted) > since + 3, 60, "nobody is answered any more")
    finally:
        over.set()
        caller.join(120)
    assert counted == list(range(last.counter + 1, last.counter + 1 + len(counted)))
    last = ask(seats, "b")
    assert last.counter == counted[-1] + 1
    assert site.used("n1", uids[0]) == {0, 1}
    moved(site, seats, (uids[0], uids[1]), last, "n1")


def test_an_agent_killed_in_the_middle_of_a_move_within_its_node(site: Site, seats: Pods) -> None:
    *uids, last = begun(site, seats, "n1")
    for number in range(3):
        name = f"w{number}"
        agent(site, "n1", "move", "a", "--to", "b", "--name", name, "--no-wait")
        time.sleep(0.4 * number)
        site.cluster.node("n1").agent.kill9()

        def ended(name: str = name) -> bool:
            return operation(site, name).get("state") in ("succeeded", "failed")

        wait_until(ended, 120, f"the move doesn't end: {name}")
        if operation(site, name)["state"] == "succeeded":
            break
    assert operation(site, name)["state"] == "succeeded", operation(site, name)
    moved(site, seats, (uids[0], uids[1]), last, "n1")


def test_one_that_can_not_go_stays(site: Site, seats: Pods) -> None:
    api = site.cluster.api()
    uid = api.post(PODS, pod("a", "n1"))["metadata"]["uid"]
    assert ask(seats, "a").counter == 1
    api.post(PODS, pod("b", "n2"))
    assert ask(seats, "b").counter == 1
    done = agent(site, "n1", "move", "a", "--to", "b")
    assert done["state"] == "failed", done
    assert f"pod/{uid}" in done["sentence"] or "runs already" in done["sentence"], done
    assert ask(seats, "a").counter == 2


@pytest.mark.parametrize("victim", ["n1", "n2"])
def test_an_agent_killed_in_the_middle(site: Site, seats: Pods, victim: str) -> None:
    *uids, last = begun(site, seats)
    agent(site, "n1", "move", "a", "--to", "b", "--name", f"m-{victim}", "--no-wait")

    def is_on_its_way() -> bool:
        return operation(site, f"m-{victim}").get("state") in ("running", "succeeded")

    wait_until(is_on_its_way, 60, "the move doesn't begin")
    site.cluster.node(victim).agent.kill9()

    def ended() -> bool:
        return operation(site, f"m-{victim}").get("state") in ("succeeded", "failed")

    wait_until(ended, 120, lambda: f"the move doesn't end: {operation(site, f'm-{victim}')}")
    if operation(site, f"m-{victim}")["state"] == "failed":
        # All goes on where it was, and the next move goes through.
        assert ask(seats, "a").counter == last.counter + 1
        last = ask(seats, "a")
        done = agent(site, "n1", "move", "a", "--to", "b")
        assert done["state"] == "succeeded", done
    moved(site, seats, (uids[0], uids[1]), last)
