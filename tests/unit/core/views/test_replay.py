"""A ledger goes to JSON and back unchanged, and decides there as it did here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import flask
import orjson
import pytest
from click.testing import CliRunner

from extender.pages.pages import register_whole
from extender.state.snapshot import Snapshot
from kybernate.cli import main
from kybernate.core.ledger.ledger import Claim
from kybernate.core.placement import Demand, Table
from kybernate.core.views.dump import Dump, Pending, decode, encode
from kybernate.core.views.replay import Replay
from kybernate.errors import ConfigError
from kybernate.types import GroupName, Link, NodeName, PodRef, PodUid, Tier
from tests.unit.extender.objects import GIB, ONE, TWO, gpu_node, pod

if TYPE_CHECKING:
    from pathlib import Path

SAVED = "default/a@20260101T000000Z-00000001"
ACTIVITY = {"busy": [100] * 24, "calls": [5] * 24, "recent": [100, 5]}


def snapshot(policy: str = "best-fit") -> Snapshot:
    """Two nodes; a pod on the first, and three that wait, the last of which can't be read."""
    made = Snapshot(lambda: 0.0, table=Table(policy))
    seat = {"uid": "uid-held", "activity": ACTIVITY, "tier": "nvme", "savedBytes": GIB}
    row = {"artifact": SAVED, "uid": "uid-a", "tier": "nvme", "bytes": GIB}
    made.node_event("ADDED", gpu_node("n1", seats=[seat], saved=[row]))
    made.node_event("ADDED", gpu_node("n2"))
    made.pod_event("ADDED", pod("held", node="n1", notes={"kyb.ai/group": "G0"}))
    for name, notes in (("a", {"kyb.ai/vram": "30Gi"}), ("b", {}), ("c", {"kyb.ai/vram": "x"})):
        made.pod_event("ADDED", pod(name, limits={TWO: "1"}, notes=notes))
    return made


def taken() -> Any:
    return orjson.loads(orjson.dumps(snapshot().dump("2026-01-02T03:04:05Z")))


def test_a_dump_comes_back_as_it_was() -> None:
    dump = decode(taken())
    assert encode(dump) == taken()
    assert [node.name for node in dump.nodes] == ["n1", "n2"]
    assert set(dump.nodes[0].links.values()) == {Link.NVLINK}
    assert dump.nodes[0].traffic.keys() == dump.nodes[0].rests.keys() == {"uid-held"}
    assert dump.nodes[0].rests["uid-held"].tier is Tier.NVME
    assert [one.artifact for one in dump.nodes[0].saved] == [SAVED]
    assert [str(claim.pod) for claim in dump.claims] == ["default/held"]
    assert dump.pending[0].demand == Demand(TWO, 30 * GIB)
    assert "is not a quantity" in dump.pending[2].problem


def test_pods_are_placed_one_after_the_other() -> None:
    decided = list(Replay(decode(taken()), Table("best-fit").of).pending())
    assert [one.fitting for one in decided] == [2, 1, 0]
    assert {one.node for one in decided[:2]} == {"n1", "n2"}
    assert {one.group for one in decided[:2]} == {"G01"}
    assert decided[2].node is None


def test_what_is_decided_is_what_the_extender_decides() -> None:
    for policy in ("best-fit", "spread", "default"):
        first = next(iter(Replay(decode(taken()), Table(policy).of).pending()))
        demand, names = Demand(TWO, 30 * GIB), [NodeName("n1"), NodeName("n2")]
        points = snapshot(policy).points(PodUid("uid-a"), demand, names)
        assert (first.points, first.node) == (max(points), names[points.index(max(points))])


def test_pods_that_are_placed_can_be_decided_anew() -> None:
    (one,) = Replay(decode(taken()), Table("bin-pack").of).bound()
    assert one.was == ("n1", "G0")
    assert one.node in ("n1", "n2")
    # All is as before: the pod stays where it is.
    replay = Replay(decode(taken()), Table("bin-pack").of)
    assert list(replay.bound()) == list(replay.bound())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "format: 'x' is no dump"),
        ({"nodes": 3}, "nodes: must be list, got int"),
        ({"nodes": [{"name": "n"}]}, r"nodes\[0\].gpus: is missing"),
        ({"extra": 1}, "extra: unknown"),
        ({"policy": None}, "policy: must be str, got nothing"),
        ({"claims": [{"pod": []}]}, r"claims\[0\]"),
    ],
)
def test_a_dump_that_is_wrong_is_refused_by_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        decode({**taken(), **change})


def test_a_link_that_nobody_knows_is_named() -> None:
    dump = taken()
    dump["nodes"][0]["links"][0][1] = "string"
    with pytest.raises(ConfigError, match="'string' is unknown; there are system"):
        decode(dump)


def test_the_command_says_it_in_words_and_as_json(tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_bytes(orjson.dumps(taken()))
    told = CliRunner().invoke(main, ["replay", str(file)], env={"COLUMNS": "300"})
    assert "policy best-fit: 2 of 3 pods have a place" in told.output
    assert "waits: 2 nodes: kyb.ai/vram: 'x' is not a quantity" in told.output
    run = CliRunner().invoke(main, ["replay", str(file), "--json", "--policy=spread", "--bound"])
    found = json.loads(run.output)
    assert (found["policy"], len(found["pods"])) == ("spread", 4)
    assert found["pods"][0]["was"] == ["n1", "G0"]


def test_the_command_refuses_what_is_no_dump(tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    for text, said in (("{", "is not JSON"), ("{}", "is no dump of the ledger")):
        file.write_text(text)
        run = CliRunner().invoke(main, ["replay", str(file)])
        assert (run.exit_code, said in run.output) == (1, True)
    file.write_bytes(orjson.dumps({**taken(), "policy": "mine"}))
    assert "'mine' is unknown" in CliRunner().invoke(main, ["replay", str(file)]).output


def test_the_extender_serves_it_to_who_may_ask_once_it_knows_all() -> None:
    refusal: list[str | None] = [None, None]
    app, known = flask.Flask("test"), snapshot()
    register_whole(
        app,
        "dump",
        lambda: known.dump("2026-01-02T03:04:05Z"),
        lambda: refusal[0],
        lambda _environ: refusal[1],
    )
    client = app.test_client()
    assert client.get("/dump").get_json() == taken()
    for status in (503, 403):
        refusal[503 - status and 1] = "not now"
        answer = client.get("/dump")
        assert (answer.status_code, answer.get_json()) == (status, {"Error": "not now"})


def test_a_pod_that_can_be_placed_nowhere_has_all_reasons() -> None:
    waits = Pending(PodRef("d", "p", PodUid("u")), Demand("kyb.ai/gpu-8x-seat"))
    held = Claim(PodRef("d", "q", PodUid("v")), NodeName("n1"), GroupName("G01"), ONE)
    dump = Dump("", "spread", decode(taken()).nodes, (held,), (waits,))
    (one,) = Replay(dump, Table("spread").of).pending()
    assert one.reasons == {"the node has no group for kyb.ai/gpu-8x-seat": 2}
