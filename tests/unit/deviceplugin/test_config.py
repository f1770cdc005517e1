"""The file of profiles and groups: what it may say, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kybernate.core.ledger.topology import groups_of
from kybernate.errors import ConfigError
from kybernate.settings.plugin import DEFAULT_SEATS, PluginSettings, parse_seats_config
from kybernate.types import Gpu, GpuUuid

ROOT = Path(__file__).parents[3]
ONE = "{name: a, resource: kyb.ai/gpu-1x-seat, groupSize: 1, seatsPerGroup: 4}"


def test_the_example_configmap_says_the_defaults():
    example = yaml.safe_load((ROOT / "config/deviceplugin/configmap.yaml").read_text())
    assert parse_seats_config(example["data"]["config.yaml"]).profiles == DEFAULT_SEATS.profiles


def test_defaults_for_what_is_left_out():
    config = parse_seats_config(f"profiles: [{ONE}]")
    (profile,) = (entry.profile() for entry in config.profiles)
    assert (profile.active_slots, profile.allow_overprovision) == (1, True)


SHORT = """
profiles:
  - resource: kyb.ai/gpu-1x-seat
    seatsPerGroup: 4
  - resource: kyb.ai/gpu-2x-seat
    seatsPerGroup: 3
groups:
  - name: G01
    gpus: [0,1]
  - name: G23
    gpus: [2,3]
"""
LONG = """
profiles:
  - {name: gpu-1x-seat, resource: kyb.ai/gpu-1x-seat, groupSize: 1, seatsPerGroup: 4}
  - {name: gpu-2x-seat, resource: kyb.ai/gpu-2x-seat, groupSize: 2, seatsPerGroup: 3}
gpuTopology:
  groups: [{name: G01, gpus: [0, 1]}, {name: G23, gpus: [2, 3]}]
"""


def test_the_short_form_says_what_the_long_one_says():
    config = parse_seats_config(SHORT)
    assert config == parse_seats_config(LONG)
    gpus = [Gpu(GpuUuid(f"GPU-{at}"), at, "H100", 1) for at in range(4)]
    found = {group.name: (group.resource, group.seats) for group in groups_of(config, gpus, {})}
    ones = {f"G{at}": ("kyb.ai/gpu-1x-seat", 4) for at in range(4)}
    assert found == {**ones, **dict.fromkeys(("G01", "G23"), ("kyb.ai/gpu-2x-seat", 3))}


@pytest.mark.parametrize(("count", "names"), [(1, ["G0"]), (3, ["G0", "G1", "G2", "G01"])])
def test_the_defaults_offer_only_sizes_that_the_node_can_form(count, names):
    gpus = [Gpu(GpuUuid(f"GPU-{at}"), at, "H100", 1) for at in range(count)]
    assert [group.name for group in groups_of(DEFAULT_SEATS, gpus, {})] == names


@pytest.mark.parametrize(
    ("text", "field", "word"),
    [
        ("", "profiles", "empty"),
        ("- a", "profiles", "mapping"),
        ("{", "profiles", "YAML"),
        ("profiles: []", "profiles", "at least 1"),
        ("gpuTopology: {}", "profiles", "missing"),
        (f"profiles: [{ONE}]\ngroups: []\ngpuTopology: {{}}", "groups", "write one of the two"),
        (f"profiles: [{ONE}]\ngroups: 1", "gpuTopology.groups", "tuple"),
        ("profiles: [{resource: kyb.ai/gpu, seatsPerGroup: 1}]", "profiles[0].name", "missing"),
        ("profiles: [1]", "profiles[0]", "dictionary"),
        (f"profiles: [{ONE}]\ncolour: red", "colour", "unknown key"),
        (f"profiles: [{ONE[:-1]}, size: 2}}]", "profiles[0].size", "unknown key"),
        (f"profiles: [{ONE}, {ONE}]", "profiles[0].name", "twice"),
        (
            f"profiles: [{ONE.replace('groupSize: 1', 'groupSize: 2')}]",
            "profiles[0].resource",
            "write kyb.ai/gpu-2x-seat",
        ),
        (f"profiles: [{ONE.replace('4', '0')}]", "profiles[0].seatsPerGroup", "greater"),
        (f"profiles: [{ONE.replace('4', 'true')}]", "profiles[0].seatsPerGroup", "integer"),
        (f"profiles: [{ONE[:-1]}, activeSlots: 5}}]", "profiles[0].activeSlots", "more than"),
        (
            f"profiles: [{ONE}]\ngpuTopology: {{groups: [{{name: A, gpus: [x]}}]}}",
            "gpuTopology.groups[0].gpus[0]",
            "integer",
        ),
        (
            f"profiles: [{ONE}]\ngpuTopology: {{groups: [{{name: A, gpus: []}}]}}",
            "gpuTopology.groups[0].gpus",
            "at least 1",
        ),
        (
            f"profiles: [{ONE}]\ngpuTopology: {{groups: [{{name: A/B, gpus: [0]}}]}}",
            "gpuTopology.groups[0].name",
            "pattern",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_its_field(text, field, word):
    with pytest.raises(ConfigError, match=word) as caught:
        parse_seats_config(text)
    assert caught.value.field == field


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_seats_config("profiles: [{name: a}]\nextra: 1")
    for field in ("profiles[0].resource", "profiles[0].groupSize", "extra"):
        assert field in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"prestart_deadline_s": 30}, {"kubelet_dir": "/" + "x" * 80}, {"probe_listen": "here"}],
)
def test_settings_that_could_not_work_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PluginSettings.model_validate(wrong)
