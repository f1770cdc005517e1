"""The doctor's look at offload."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from kybernate.adapters.criu import lacking
from kybernate.adapters.criu.checks.rights import _NAMES
from kybernate.adapters.files.diskspeed import measure
from kybernate.adapters.lookabout import LookAbout
from kybernate.core.doctor.doctor import Level
from kybernate.core.doctor.nodefacts import CriuFacts, DiskFacts, Unseen
from kybernate.core.doctor.offload import (
    CAPABILITIES,
    FEATURES,
    OffloadFacts,
    Speed,
    examine_offload,
)

GIB = 1 << 30
ALL = sum(1 << number for number in CAPABILITIES.values())
GOOD = OffloadFacts(
    bounds=ALL,
    lacking=(),
    disk=DiskFacts("/var/lib/kyb-nvme", 900 * GIB, "xfs"),
    speed=Speed(2e9, 3e9),
    largest=80 * GIB,
)


def test_a_good_node_has_nothing_to_do() -> None:
    assert {one.level for one in examine_offload(GOOD)} == {Level.OK}
    assert not [one.do for one in examine_offload(GOOD) if one.do]


@pytest.mark.parametrize(
    ("changed", "check", "says"),
    [
        ({"bounds": ALL & ~(1 << 25)}, "below-rights", "SYS_TIME"),
        ({"lacking": Unseen("there is no criu")}, "below-kernel", "no criu"),
        ({"lacking": ("timens",)}, "below-kernel", "timens"),
        ({"lacking": ("uffd-noncoop",)}, "below-kernel", "lazily"),
        ({"disk": Unseen("gone")}, "below-room", "gone"),
        ({"disk": DiskFacts("/x", 900 * GIB, "tmpfs")}, "below-room", "tmpfs"),
        ({"disk": DiskFacts("/x", 20 * GIB, "xfs")}, "below-room", "80 GiB"),
        ({"speed": Speed(100e6, 3e9)}, "below-speed", "107 s"),
        ({"speed": Unseen("read only")}, "below-speed", "read only"),
    ],
)
def test_each_lack_is_told(changed: dict[str, object], check: str, says: str) -> None:
    findings = examine_offload(replace(GOOD, **changed))  # type: ignore[arg-type]
    (found,) = [one for one in findings if one.level is not Level.OK]
    assert (found.check, found.level) == (check, Level.WARN)
    assert says in found.seen
    assert found.do


def test_rights_are_those_of_the_component_under_the_kernels_numbers() -> None:
    path = Path(__file__).parents[3] / "config" / "below-ram" / "agent.yaml"
    pod = yaml.safe_load(path.read_text())["spec"]["template"]["spec"]
    given = pod["containers"][0]["securityContext"]["capabilities"]["add"]
    assert set(given) == set(CAPABILITIES)
    assert all(_NAMES[number] == name for name, number in CAPABILITIES.items())


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    write, read = measure(tmp_path, size=1 << 20)
    assert write > 0
    assert read > 0
    assert not list(tmp_path.iterdir())
    assert LookAbout().existing(tmp_path / "not" / "yet") == tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look")
def test_criu_is_asked_for_each_feature(tmp_path: Path) -> None:
    program = tmp_path / "criu"
    program.write_text('#!/bin/sh\n[ "$1 $2" = "check --feature" ] && [ "$3" != timens ]\n')
    program.chmod(0o755)
    assert lacking(CriuFacts(str(program), "4.2.1", True, ""), FEATURES) == ("timens",)
    assert isinstance(lacking(None, FEATURES), Unseen)


def test_what_this_process_may_have_is_seen() -> None:
    assert LookAbout().bounds() >> CAPABILITIES["KILL"] & 1 == 1 or os.geteuid() != 0
