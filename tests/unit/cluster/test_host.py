from __future__ import annotations

from tests.cluster.parts.host import overlapping, undo, way_out
from tests.cluster.start.state import State

ADDRESSES = """\
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
5: cni0    inet 10.88.0.1/16 brd 10.88.255.255 scope global cni0\\       valid_lft forever
"""


def test_a_network_of_the_host_in_the_way_is_named() -> None:
    assert overlapping(ADDRESSES, "10.88.1.1/24") == "10.88.0.0/16 on cni0"
    assert overlapping(ADDRESSES, "10.89.1.1/24") is None


def test_another_clusters_network_in_the_way_is_told_with_its_folder(tmp_path) -> None:
    for name, alias in (("kyb1", "/var/tmp/kyb-abc/kyb\n"), ("cni0", "\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ifalias").write_text(alias)
    assert "the cluster in /var/tmp/kyb-abc/kyb: wait" in way_out("kyb1", tmp_path)
    for none in ("cni0", "gone"):
        assert way_out(none, tmp_path) == "choose another /16, and another name"


def test_what_this_version_can_not_undo_is_reported_and_the_rest_goes_on(tmp_path) -> None:
    state = State(tmp_path / "s.json", made=[("mount", str(tmp_path)), ("folder", "/x")])
    (left,) = undo(state)
    assert left.startswith("folder /x:")


def test_what_is_made_is_on_disk_before_it_is_made(tmp_path) -> None:
    state = State(tmp_path / "s.json", facts={"port_base": 1})
    state.will_make("bridge", "kyb1")
    state.will_make("bridge", "kyb1")
    found = State.read(tmp_path / "s.json")
    assert found is not None
    assert found.made == [("bridge", "kyb1")]
    assert found.facts == {"port_base": 1}


def test_a_torn_or_missing_record_is_no_record(tmp_path) -> None:
    assert State.read(tmp_path / "none.json") is None
    (tmp_path / "torn.json").write_text('{"made": [')
    assert State.read(tmp_path / "torn.json") is None
