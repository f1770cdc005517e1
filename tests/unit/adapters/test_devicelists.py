"""Lists of version 1: only what is missing is written, for which a thread takes rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.devices import lists
from kybernate.adapters.devices.lists import DeviceLists
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

GPUS = [(60, 0), (60, 255)]


def _group(tmp_path: Path, listed: str) -> tuple[DeviceLists, Path]:
    group = tmp_path / "cgroup" / "devices" / "pod1" / "c1"
    group.mkdir(parents=True)
    (group / "devices.list").write_text(listed)
    for folder in (group, group.parent.parent):
        (folder / "devices.allow").write_text("")
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "cgroup").write_text("3:memory:/pod1/c1\n2:devices:/pod1/c1\n")
    return DeviceLists(tmp_path / "cgroup", tmp_path / "proc"), group


@pytest.mark.parametrize(
    "listed",
    [
        "c 60:0 rw\nc 60:255 rw\n",
        "c *:* m\nc 60:0 rwm\nc 60:255 rwm\nc 1:3 rwm\n",
        "c 60:* rw\n",
        "a *:* rwm\n",
    ],
)
def test_a_container_that_has_them_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    """No thread takes any right then."""
    door, group = _group(tmp_path, listed)
    monkeypatch.setattr(lists, "as_admin", lambda _call: pytest.fail("it wrote"))
    assert door.lets(7, GPUS)
    door.open(7, GPUS, lambda: True)
    assert not (group / "devices.allow").read_text()


@pytest.mark.parametrize(
    "listed", ["", "c 60:0 rwm\n", "c 60:0 rwm\nc 60:255 m\n", "c 60:2550 rw\n"]
)
def test_what_is_missing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    """Also where a runtime has laid down its own list again."""
    door, group = _group(tmp_path, listed)
    monkeypatch.setattr(lists, "as_admin", lambda call: call())
    assert not door.lets(7, GPUS)
    shuts = door.open(7, GPUS, lambda: True)
    # A file that isn't the kernel's keeps the last line, and the longest one's rest.
    assert (group / "devices.allow").read_text().startswith("c 60:")
    (group / "devices.deny").write_text("")
    shuts()
    assert (group / "devices.deny").read_text().startswith("c 60:")


def test_a_number_that_is_anothers_is_not_let_in(tmp_path: Path) -> None:
    """Its group may be another pod's."""
    door, _ = _group(tmp_path, "")
    with pytest.raises(NotFoundError, match="no process 7"):
        door.open(7, GPUS, lambda: False)
    with pytest.raises(NotFoundError, match="no process 8"):
        door.lets(8, GPUS)
