"""What Yama lets this process do."""

from __future__ import annotations

import re

import pytest

from kybernate.api.models import Tiers
from kybernate.local import rights
from kybernate.local.rights import may, refusal, stays_in_ram

PTRACE, NONE = "0000000000080000", "0000000000000000"


@pytest.fixture
def told(tmp_path):
    def ask(scope: str | None, capabilities: str) -> str | None:
        yama, status = tmp_path / "scope", tmp_path / "status"
        status.write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
        if scope is not None:
            yama.write_text(scope)
        return refusal(yama, status)

    return ask


@pytest.mark.parametrize("scope", [None, "0\n", "1\n"])
def test_ones_own_processes_may_be_parked(told, scope):
    assert told(scope, NONE) is None


def test_scope_2_needs_the_capability(told):
    assert told("2\n", PTRACE) is None
    sentence = told("2\n", NONE)
    assert sentence is not None
    assert "CAP_SYS_PTRACE" in sentence
    assert "set it to 1" in sentence


def test_scope_3_lets_nobody(told):
    assert "nobody" in (told("3\n", PTRACE) or "")


def test_capabilities_are_read_bit_by_bit(tmp_path):
    status = tmp_path / "status"
    status.write_text(f"CapEff:\t{PTRACE}\n")
    assert may(19, status)
    assert not may(18, status)


def test_models_leave_ram_where_a_folder_root_and_criu_are(tmp_path):
    program = tmp_path / "criu"
    program.touch(mode=0o755)
    assert stays_in_ram(Tiers(nvme="/cache", criu=str(program)), user=0) is None
    assert stays_in_ram(Tiers(criu=str(program)), user=1000) is None


def test_models_stay_in_ram_without_the_packages_that_write_artifacts(tmp_path, monkeypatch):
    program = tmp_path / "criu"
    program.touch(mode=0o755)
    monkeypatch.setattr(rights, "_PACKAGES", ("blake3", "nothing_of_this_name"))
    why = stays_in_ram(Tiers(nvme="/cache", criu=str(program)), user=0)
    assert why is not None
    assert "nothing_of_this_name can't be imported; install 'kybernate[checkpoint]'" in why
    assert "blake3" not in why


@pytest.mark.parametrize(
    ("user", "says"),
    [(1000, "tiers.nvme: .*takes root"), (0, "tiers.criu: .*/nothing is no program")],
)
def test_why_models_stay_in_ram_is_said(tmp_path, user, says):
    tiers = Tiers(nvme="/cache", criu=str(tmp_path / "nothing"))
    assert re.match(says, stays_in_ram(tiers, user) or "")
