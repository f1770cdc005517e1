"""What people ask of a box by hand: park, wake, pin, unload, logs, and what that costs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kybernate.cli import main as kybernate
from tests.local.conftest import MIB, PATIENCE, Box, eventually, lives


def act(box: Box, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{box.port}/api/models/{path}"
    request = urllib.request.Request(url, b"")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def model(box: Box, name: str) -> dict[str, Any]:
    listed = json.loads(box.get("/v1/models"))["data"]
    return next(row["kyb"] for row in listed if row["id"] == name)


def test_a_model_is_parked_and_woken_by_hand(box: Box):
    box.has("a")
    box.start()
    first = box.ask("a")
    assert act(box, "park/a")[0] == 200
    assert model(box, "a")["state"] == "parked"
    assert act(box, "park/a")[0] == 200  # again
    assert act(box, "wake/a")[0] == 200
    assert model(box, "a")["state"] == "active"
    assert box.ask("a")["counter"] == first["counter"] + 1


def test_a_park_by_hand_is_done_though_a_request_wakes_the_model_at_once(box: Box):
    box.has("a", options="--token-delay 0.2")
    box.start()
    box.ask("a")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(box.ask, "a")
        eventually(lambda: model(box, "a")["in_flight"] == 1)
        parked = pool.submit(act, box, "park/a")
        eventually(lambda: model(box, "a")["state"] == "draining")
        second = pool.submit(box.ask, "a")
        assert [one.result()["counter"] for one in (first, second)] == [2, 3]
        assert parked.result(20)[0] == 200
    assert model(box, "a")["wakes"] == 1


def test_an_unloaded_model_ends_and_is_started_by_the_next_request(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    before = {name: box.ask(name) for name in "ab"}  # a is parked now
    for name in "ab":
        assert act(box, f"unload/{name}")[0] == 200
        assert not lives(before[name]["pid"])
        assert act(box, f"unload/{name}")[0] == 200  # again
    after = {name: box.ask(name) for name in "ab"}
    assert all(after[name]["boot"] != before[name]["boot"] for name in "ab")


def test_a_pinned_model_is_not_parked_for_another(box: Box):
    box.has("a", pin=True)
    box.has("b")
    box.start()
    box.ask("a")
    status, said = act(box, "park/a")
    assert status == 409
    assert "unpin it first" in said
    assert act(box, "unpin/a")[0] == 200
    assert box.ask("b")["counter"] == 1
    assert model(box, "a")["state"] == "parked"


def metrics(box: Box) -> dict[str, float]:
    rows = [row for row in box.get("/metrics").decode().splitlines() if not row.startswith("#")]
    return {name: float(value) for name, _, value in (row.rpartition(" ") for row in rows)}


def test_metrics_count_seats_swaps_and_tiers(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    for name in "aba":
        box.ask(name)
    seen = metrics(box)
    for state, number in (("active", 1), ("parked", 1), ("waiting", 0)):
        assert seen[f'kyb_agent_seats{{state="{state}"}}'] == number
    assert seen['kyb_agent_swaps_total{group="any"}'] == 1
    assert seen['kyb_agent_step_seconds_count{operation="park",phase="all"}'] == 2
    assert seen['kyb_proxy_requests_total{model="a",status="200"}'] == 2
    held = eventually(lambda: metrics(box).get('kyb_agent_tier_bytes{tier="ram"}'))
    assert held >= 40 * MIB


def test_what_a_model_writes_is_kept(box: Box):
    box.has("a")
    box.start()
    box.ask("a")
    assert b'"model": "a"' in box.get("/logs")


def test_a_models_command_does_not_inherit_the_boxs_keys(box: Box):
    box.environment |= {"MY_KEY": "sesame", "MY_PLACE": "kept"}
    box.keys["apiKeys"] = ["${env.MY_KEY}"]
    box.models["a"] = {"cmd": "/bin/sh -c 'env; exec sleep 1000'", "vram": "1MiB"}
    box.models["a"]["checkEndpoint"] = "none"
    box.start()
    url = f"http://127.0.0.1:{box.port}/api/models/wake/a"
    request = urllib.request.Request(url, b"", {"Authorization": "Bearer sesame"})
    threading.Thread(target=lambda: _read(request), daemon=True).start()
    logs = box.folder / ".local" / "state" / "kybernate" / "logs"
    said = eventually(lambda: "".join(file.read_text() for file in logs.glob("*.log")))
    assert "MY_PLACE=kept" in said
    assert "sesame" not in said


def _read(request: urllib.request.Request) -> None:
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
        answer.read()


def test_the_logs_of_models_that_are_no_more_are_kept_for_a_day(box: Box):
    box.has("a")
    box.start()
    box.ask("a")
    logs = box.folder / ".local" / "state" / "kybernate" / "logs"
    old, new = logs / "model-old.log", logs / "model-new.log"
    present = next(logs.glob("*.log"))
    for file in (old, old.with_name("model-old.log.1"), new):
        file.write_text("gone")
    before = time.time() - 90_000
    for file in (old, old.with_name("model-old.log.1"), present):
        os.utime(file, (before, before))
    eventually(
        lambda: sorted(file.name for file in logs.iterdir()) == sorted([present.name, new.name])
    )


def _asked(box: Box, model: str) -> tuple[int, str]:
    body = json.dumps({"model": model, "messages": []}).encode()
    url = f"http://127.0.0.1:{box.port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_command_that_can_not_serve_is_told_at_once(box: Box):
    box.models["b"] = {"cmd": "/bin/sh -c 'echo no weights here; exit 3'", "vram": "1MiB"}
    box.models["c"] = {"cmd": "/no/such/program --port ${PORT}", "vram": "1MiB"}
    box.start()
    began = time.monotonic()
    for _ in range(2):
        status, said = _asked(box, "b")
        assert (status, json.loads(said)["error"]["code"]) == (502, "model_ended")
        assert "ended with status 3 before it served" in said
        assert "no weights here" in said
    assert _asked(box, "c")[0] == 502
    assert time.monotonic() - began < 30  # healthCheckTimeout is 120 s


def test_a_command_that_fails_once_is_started_once_more(box: Box):
    box.has("a")
    mark = box.folder / "mark"
    serves = box.models["a"]["cmd"]
    box.models["a"]["cmd"] = (
        f"/bin/sh -c 'test -e {mark} || {{ touch {mark}; exit 1; }}; exec {serves}'"
    )
    box.start()
    assert box.ask("a")["counter"] == 1


def test_a_model_that_the_file_has_not_got_is_not_found(box: Box):
    box.has("a")
    box.start()
    assert act(box, "park/x")[0] == 404


def calibrated(box: Box, *words: str) -> Result:
    line = ["calibrate", "--url", f"http://127.0.0.1:{box.port}", *words]
    return CliRunner().invoke(kybernate, line, env={"KYB_BOX_KEY": "sesame"})


def test_a_simulated_boxs_swaps_are_measured_and_simulated(box: Box, tmp_path: Path):
    for name in ("SIMGPU_DIR", "LD_LIBRARY_PATH"):
        del box.environment[name]
    box.has("a", aliases=["letters/a"])
    box.has("b")
    box.has("pinned", pin=True)
    box.keys["apiKeys"] = ["sesame"]
    box.start("--simulate")
    assert box.process is not None
    environ = Path(f"/proc/{box.process.pid}/environ").read_text().split("\0")
    (folder,) = (Path(one[11:]) for one in environ if one.startswith("SIMGPU_DIR="))
    out, models, trace = (tmp_path / name for name in ("costs.json", "m.csv", "t.csv"))
    try:
        done = calibrated(box, "letters/a", "b", "--rounds", "2", "--out", str(out))
        assert done.exit_code == 0, f"{done.output}\n{box.log}"
        assert "a box's NVMe isn't measured: the file says nothing of it" in done.output
        refused = calibrated(box, "a", "--key", "guessed")
        unknown = calibrated(box, "nobody")
        pinned = calibrated(box, "pinned")
        assert box.end() == 0
        ended = calibrated(box, "a")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    costs = json.loads(out.read_text())
    assert costs["gpu_gb"] == pytest.approx(512 * MIB / 1e9, rel=1e-3)
    assert 0.01 < costs["wake"] < 1000
    assert 0.01 < costs["park"] < 1000
    # The tree is frozen, and thawed, too: no park or wake is the driver's copy alone.
    assert 0 < costs["fixed"] < 5
    models.write_text("model,gb\na,0.04\nb,0.04\n")
    trace.write_text("at,model,seconds\n0,a,1\n1,b,1\n")
    line = ["simulate", str(trace), "--models", str(models), "--costs", str(out), "--json"]
    played = CliRunner().invoke(kybernate, [*line, "--gpus", "1"])
    assert played.exit_code == 0, played.output
    slow = costs["fixed"] + 0.04 / costs["wake"]
    assert json.loads(played.output)["ours"]["wait_max"] >= slow * 0.999
    for failed, said in (
        (refused, "Send a key of models.yaml (apiKeys)"),
        (refused, "give one by --key or KYB_BOX_KEY"),
        (unknown, "No model is called 'nobody' here. There are: a, b, pinned"),
        (pinned, "model pinned is pinned: unpin it first (POST /api/models/unpin/pinned)"),
        (ended, "no box answers at http://127.0.0.1:"),
        (ended, "is kybernate serve running there?"),
    ):
        assert failed.exit_code == 1, failed.output
        assert said in failed.output


def test_a_model_for_which_ram_has_no_room_is_refused_at_once(box: Box):
    box.has("a")
    box.keys["tiers"] = {"ram": "10MiB"}
    box.start()
    failed = calibrated(box, "a")
    assert failed.exit_code == 1
    assert "model a can't be parked now: " in failed.output
    assert box.ask("a")["counter"] == 1
