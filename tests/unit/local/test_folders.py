"""Where a box keeps what."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kybernate.errors import ConfigError
from kybernate.local.folders import folders


def test_without_variables_all_is_at_home():
    found = folders({"HOME": "/home/ann"})
    assert found.config == Path("/home/ann/.config/kybernate")
    assert found.state == Path("/home/ann/.local/state/kybernate")
    assert found.run == Path("/home/ann/.local/state/kybernate/run")


def test_variables_come_first_if_they_are_absolute():
    given = {"HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/7", "XDG_CONFIG_HOME": "relative"}
    found = folders(given)
    assert found.run == Path("/run/user/7/kybernate")
    assert found.config == Path("/home/ann/.config/kybernate")


def test_they_are_this_users_alone(tmp_path):
    found = folders({"HOME": str(tmp_path)})
    found.make()
    assert found.state.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away")
def test_another_users_folder_is_refused(tmp_path):
    found = folders({"HOME": str(tmp_path)})
    found.make()
    os.chown(found.state, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        found.make()
