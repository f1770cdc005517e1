"""The agents as the controller calls them, over real mutual TLS."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from controller.checkpoints.agents import Agents
from kybernate.adapters.pki import Folder, Validity
from kybernate.core.requests.checkpoint import (
    Copied,
    Mode,
    Operation,
    Problem,
    Request,
    Status,
    Target,
    Trouble,
    operation_name,
)
from kybernate.core.seat.operations import Progress
from kybernate.errors import RetryableError
from kybernate.gen import agent_pb2 as pb
from kybernate.types import Tier
from tests.kit.servers.agentdoor import Door, serve


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    Folder(folder).init(["n1", "n2"], Validity(), datetime.now(UTC))
    return folder


@pytest.fixture
def door():
    found = Door()
    found.seats.add("u1")
    return found


@pytest.fixture
def address(door, tls):
    server, port = serve(door, tls, "n1")
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def agents(address, tls):
    found = Agents(tls, 5.0, {"n1": address, "n2": address}.get, lambda _: "", shared=True)
    yield found
    found.close()


def asked(mode=Mode.PARK, uid="r1", pod="u1", tier=None):
    status = Status(pod, "n1", operation_name(uid))
    return Request(uid, "shop", "once", "a", mode, tier, "ann", 0.0, 60.0, None, status)


@pytest.mark.parametrize(
    ("mode", "tier", "kind"),
    [
        (Mode.PARK, Tier.NVME, "park"),
        (Mode.SNAPSHOT, Tier.OBJECT, "save"),
        (Mode.EVICT, None, "evict"),
        (Mode.EVICT, Tier.OBJECT, "evict"),
        (Mode.WAKE, None, "wake"),
    ],
)
def test_each_mode_is_one_call_with_the_requests_name_and_words(agents, door, mode, tier, kind):
    found = agents.begin(asked(mode, tier=tier), 60.0)
    assert isinstance(found, Operation)
    assert door.begun == [("ckpt-r1", kind, "u1", tier.value if tier else "")]
    # A wake is a wish, and has no end of its own on the agent: the controller takes it back.
    limit = 0.0 if mode is Mode.WAKE else 60.0
    assert door.limits == [limit], "the agent gives up by itself, if no controller is left"
    assert door.operations["ckpt-r1"].why == "CheckpointRequest shop/once of ann"
    assert door.operations["ckpt-r1"].by == "kyb-controller"
    assert agents.begin(asked(mode, tier=tier), 60.0) == found
    assert len(door.begun) == 1


@pytest.mark.parametrize(("target", "copied"), [(None, []), (Target("n2"), ["ckpt-r1"])])
def test_who_is_to_move_is_copied_first_and_who_makes_room_is_not(agents, door, target, copied):
    agents.begin(replace(asked(Mode.EVICT, tier=Tier.OBJECT), target=target), 60.0)
    assert door.precopied == copied


def test_what_was_kept_is_told(agents):
    agents.begin(asked(Mode.SNAPSHOT), 60.0)
    found = agents.find("n1", "ckpt-r1")
    assert found.state is Progress.SUCCEEDED
    assert (found.outcome.artifact, found.outcome.tier, found.outcome.size) == (
        "shop/a@ckpt-r1",
        "object",
        7,
    )


def test_how_much_is_copied_is_told(agents, door):
    door.takes = 60.0
    assert agents.begin(asked(Mode.SNAPSHOT), 60.0).copied is None
    door.operations["ckpt-r1"].bytes_done, door.operations["ckpt-r1"].bytes_total = 3, 7
    assert agents.find("n1", "ckpt-r1").copied == Copied(3, 7)


def test_a_seat_with_another_operation_is_busy_and_not_refused_for_good(agents, door):
    door.takes = 60.0
    agents.begin(asked(), 60.0)
    assert agents.begin(asked(uid="r2"), 60.0).trouble is Trouble.BUSY
    agents.cancel("n1", "ckpt-r1")
    door.refuses = "this node has no tier nvme"
    refused = agents.begin(asked(uid="r2"), 60.0)
    assert (refused.trouble, "no tier nvme" in refused.sentence) == (Trouble.REFUSED, True)


def test_a_rival_that_ends_between_refusal_and_list_is_no_refusal_for_good(agents, door):
    door.takes = 60.0
    agents.begin(asked(), 60.0)
    door.refusing = lambda: door.operations["ckpt-r1"].MergeFrom(pb.Operation(state="succeeded"))
    assert agents.begin(asked(uid="r2"), 60.0).trouble is Trouble.BUSY
    assert agents.begin(asked(uid="r2"), 60.0).state is Progress.RUNNING
    assert [one[0] for one in door.begun] == ["ckpt-r1", "ckpt-r2"]


@pytest.mark.parametrize(
    "saved",
    [pb.Saved(tier="tape", bytes=7), pb.Saved(tier="nvme", bytes=1 << 63)],
)
def test_what_no_status_can_say_is_not_believed(agents, door, saved):
    """The API server would take no status with it, and so the request would never end."""
    agents.begin(asked(Mode.SNAPSHOT), 60.0)
    door.operations["ckpt-r1"].saved.CopyFrom(saved)
    found = agents.find("n1", "ckpt-r1")
    assert isinstance(found, Problem)
    assert found.trouble is Trouble.UNREACHABLE
    door.operations["ckpt-r1"].saved.CopyFrom(pb.Saved(tier="nvme", bytes=7))
    door.operations["ckpt-r1"].artifact = "a" * 401
    assert isinstance(agents.find("n1", "ckpt-r1"), Problem)
    door.operations["ckpt-r1"].artifact = "shop/a@1"
    door.operations["ckpt-r1"].bytes_total, door.operations["ckpt-r1"].bytes_done = 7, 1 << 63
    assert isinstance(agents.find("n1", "ckpt-r1"), Problem)


def test_what_an_agent_does_not_know(agents):
    assert agents.find("n1", "ckpt-none") is None
    assert agents.cancel("n1", "ckpt-none") is None
    assert agents.begin(asked(pod="u9"), 60.0).trouble is Trouble.NO_SEAT


def test_the_end_of_an_operation_is_heard_of(agents, door):
    door.stuck.add("u1")
    agents.begin(asked(), 60.0)
    assert not agents.ends("n1", "ckpt-r1", 0.2)
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(agents.ends, "n1", "ckpt-r1", 60.0)
        agents.cancel("n1", "ckpt-r1")
        assert heard.result(60.0)
    assert not agents.ends("n1", "ckpt-none", 60.0), "an agent that knows none of the name"
    assert not agents.ends("n3", "ckpt-r1", 60.0), "a node whose agent nobody knows"


def test_a_watch_of_the_tests_own_agent_tells_an_end_that_comes_while_it_tells(agents, door):
    door.stuck.add("u1")
    agents.begin(asked(), 60.0)
    context = SimpleNamespace(is_active=lambda: True)
    told = door.WatchOperation(pb.GetOperationRequest(name="ckpt-r1"), context)
    assert next(told).state == "running"
    agents.cancel("n1", "ckpt-r1")
    assert [one.state for one in told] == ["cancelled"]


def test_whoever_waits_for_an_end_is_told_when_the_controller_ends(agents, door):
    door.stuck.add("u1")
    agents.begin(asked(), 60.0)
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(agents.ends, "n1", "ckpt-r1", 60.0)
        agents.close()
        assert not heard.result(60.0)


def test_who_asks_after_the_end_waits_for_nobody(agents, door):
    """A thread may come to its call only then."""
    door.stuck.add("u1")
    agents.begin(asked(), 60.0)
    agents.close()
    assert not agents.ends("n1", "ckpt-r1", 60.0)
    assert agents.find("n1", "ckpt-r1").sentence == "the controller ends"


def test_own_operations_are_those_of_controllers_that_are_under_way(agents, door):
    door.takes = 60.0
    agents.begin(asked(), 60.0)
    assert agents.own("n1") == ["ckpt-r1"]
    door.operations["ckpt-r1"].by = "node"
    assert agents.own("n1") == []


def test_no_other_node_passes_for_the_one_that_is_asked(agents, door):
    """n2's address leads to n1's agent: its certificate is for another name."""
    found = agents.begin(replace(asked(), status=Status("u1", "n2", "ckpt-r1")), 60.0)
    assert isinstance(found, Problem)
    assert found.trouble is Trouble.UNREACHABLE
    assert door.begun == []


def test_a_revoked_node_and_one_without_an_address_are_not_called(address, tls, door):
    agents = Agents(tls, 5.0, lambda _: address, lambda node: f"{node} is revoked", shared=True)
    assert "n1 is revoked" in agents.begin(asked(), 60.0).sentence
    with pytest.raises(RetryableError):
        agents.own("n1")
    agents = Agents(tls, 5.0, lambda _: "", lambda _: "", shared=True)
    assert agents.find("n1", "x").trouble is Trouble.UNREACHABLE
    assert door.begun == []


def test_a_new_address_is_a_new_connection(door, tls, address):
    where = {"n1": "127.0.0.1:1"}
    agents = Agents(tls, 2.0, where.get, lambda _: "", shared=True)
    assert agents.find("n1", "x").trouble is Trouble.UNREACHABLE
    where["n1"] = address
    assert agents.find("n1", "x") is None
    agents.close()
