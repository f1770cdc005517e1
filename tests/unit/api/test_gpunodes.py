"""A GPUNode is what its agent said, to each who reads it; the CRD is made of the same models."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from extender.http import decode
from kybernate.api import crds, gpunodes
from kybernate.api.gpunodes import Status, read_status
from kybernate.api.nodeseats import read_gpu_node
from kybernate.types import Link
from tests.unit.api.gpunodes import STATUSES
from tests.unit.extender.objects import gpu_node
from webhook.app import Known

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[3] / "config/crd"


def test_the_sample_has_every_field() -> None:
    """Of a field that it leaves out, the tests below say nothing."""
    seen: set[str] = set()

    @settings(derandomize=True, database=None, phases=[Phase.generate])
    @given(STATUSES)
    def gather(status: Status) -> None:
        seen.update(_set(status))

    gather()
    models = [one for one in vars(gpunodes).values() if isinstance(one, type)]
    every = {
        f"{one.__name__}.{field.name}"
        for one in models
        if is_dataclass(one)
        for field in fields(one)
    }
    assert every - seen == {"GPUNode.status"}


def _set(part: Any) -> Iterator[str]:
    """The fields of a status and of all its parts that say something."""
    for field in fields(part):
        value = getattr(part, field.name)
        if value == field.default:
            continue
        yield f"{type(part).__name__}.{field.name}"
        for one in value if isinstance(value, tuple) else (value,):
            if is_dataclass(one):
                yield from _set(one)


@given(STATUSES)
def test_what_is_dumped_is_read_as_it_was(status: Status) -> None:
    told = orjson.loads(orjson.dumps(status.dump()))
    _, again = read_status({"status": told})
    assert again == status
    assert again.dump() == status.dump()


@given(STATUSES)
def test_each_service_reads_what_the_agent_has_said(status: Status) -> None:
    node = {"metadata": {"name": "n1"}, "status": status.dump()}
    event = decode.gpu_nodes(orjson.dumps({"type": "ADDED", "object": node}))
    assert event is not None
    found, known = read_gpu_node(node, 5), Known()
    assert read_gpu_node(event["object"], 5) == found
    assert [(gpu.uuid, gpu.memory, gpu.numa, gpu.healthy) for gpu in found.gpus] == [
        (gpu.uuid, gpu.memory_bytes, gpu.numa, gpu.healthy) for gpu in status.gpus
    ]
    assert [(group.name, group.gpus, group.active_slots) for group in found.groups] == [
        (group.name, group.gpus, group.active_slots) for group in status.groups
    ]
    assert set(found.links.values()) <= {Link.NVLINK, Link.PCIE_SWITCH}
    assert found.park_budget == (status.budget.park_bytes if status.budget else None)
    assert found.by_device_id == (status.device_strategy == "nodes")
    assert [one.artifact for one in found.saved] == [
        row.artifact for row in status.saved if row.bytes
    ]
    known.on_event("ADDED", node)
    assert {group.name for group in known.cluster.groups} == {group.name for group in found.groups}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 1 << 64)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def spoilt(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value, as the object or list and the key in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from spoilt(inner)


@given(STATUSES, st.integers(0), JSON)
def test_whatever_a_node_says_is_read_alike_and_is_nobodys_end(
    status: Status, place: int, value: Any
) -> None:
    node = {"metadata": {"name": "n1"}, "status": orjson.loads(orjson.dumps(status.dump()))}
    places = list(spoilt(node["status"]))
    holder, key = places[place % len(places)]
    holder[key] = value
    found, known = read_gpu_node(node, 0), Known()
    known.on_event("ADDED", node)
    assert {group.name for group in known.cluster.groups} == {group.name for group in found.groups}
    assert hash(found.groups) is not None
    assert found.park_budget is None or type(found.park_budget) is int


@pytest.mark.parametrize("budget", ["much", 1.5, True, [], {"a": 1}])
def test_a_budget_that_is_no_amount_takes_no_seats(budget: Any) -> None:
    found = read_gpu_node(gpu_node(budget={"parkBytes": budget}), 0)
    assert "can't be read" in (found.not_ready or "")


@pytest.mark.parametrize("name", crds.CRDS)
def test_the_crds_are_those_of_the_models_and_structural(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    assert text == crds.render(name), "run make crds"
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    # What the API server doesn't take in a schema, or takes as another meaning.
    for word in ("$ref", "$defs", "title:", "default: null", "type: 'null'", 'type: "null"'):
        assert word not in yaml.safe_dump(version["schema"])


def test_a_fields_limits_are_those_of_the_api_server() -> None:
    """Readers take more: a newer version may let in more."""
    status = yaml.safe_load(crds.render("gpunode"))["spec"]["versions"][0]
    fields = status["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert fields["gpus"]["maxItems"] == 64
    assert fields["groups"]["items"]["required"] == [
        *("name", "resource", "gpus", "seats", "activeSlots"),
    ]
    many = {"metadata": {"name": "n"}, "status": {"deviceStrategy": "newer", "gpus": []}}
    assert read_gpu_node(many, 0).not_ready is None
