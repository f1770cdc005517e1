"""Processes of models are started again, whatever hindered them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kybernate.local.launch import Command, Launcher
from kybernate.local.logs import Log
from kybernate.types import PodUid

UID = PodUid("model-1")


@pytest.mark.real_time
async def test_a_model_whose_log_cant_be_opened_is_started_once_it_can(tmp_path, caplog):
    ended = asyncio.Event()
    launcher = Launcher(Path("/bin/true"), tmp_path, lambda uid, code: ended.set())
    (tmp_path / "logs").write_text("in the way of a folder")
    launcher.keep(UID, Command(("x",), {}, Log(tmp_path / "logs" / "a.log")))
    assert launcher.pid(UID) is None
    assert "can't be started for model-1" in caplog.text
    (tmp_path / "logs").unlink()
    async with asyncio.timeout(20):
        await ended.wait()
    launcher.leave()
