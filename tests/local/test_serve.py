"""Two models that don't fit beside each other: requests swap them, and nothing of them is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.local.conftest import (
    AS_USER,
    MIB,
    NOBODY,
    ROOT,
    Box,
    eventually,
    lives,
    python,
    variables,
)


def test_requests_swap_two_models_whose_state_is_kept(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    asked = [(name, box.ask(name)) for name in "abab"]
    assert [told["counter"] for _, told in asked] == [1, 1, 2, 2]
    assert [told["device"] for _, told in asked] == [[1], [1], [2], [2]]
    assert len({told["pid"] for _, told in asked}) == 2
    assert box.never_two()


def test_models_run_as_the_user_without_rights(box: Box):
    box.has("a")
    box.start()
    status = Path(f"/proc/{box.ask('a')['pid']}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    user = str(NOBODY if os.geteuid() == 0 else os.geteuid())
    assert fields["Uid"].split() == [user] * 4
    assert int(fields["CapEff"], 16) == 0


@pytest.mark.slow
def test_make_try_needs_no_rights() -> None:
    """The command that the first page names, by a user who may write nothing here."""
    words = [*AS_USER, "make", "--no-print-directory", "try", f"PY={python()}"]
    done = subprocess.run(
        words, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" answered in ") == 9
    assert "parked" in done.stdout


def test_models_that_fit_are_active_beside_each_other(box: Box):
    box.has("a", size=20)
    box.has("b", size=20)
    box.start()
    first = box.ask("a"), box.ask("b")
    box.ask("a"), box.ask("b")
    assert "parked" not in box.log
    assert first[0]["boot"] != first[1]["boot"]


def test_models_of_two_gpus_do_not_hinder_each_other(wide_box: Box):
    wide_box.has("a")
    wide_box.has("b")
    wide_box.start()
    wide_box.ask("a"), wide_box.ask("b"), wide_box.ask("a")
    assert "parked" not in wide_box.log
    assert wide_box.never_two()


def test_a_model_that_is_preloaded_runs_before_it_is_asked(box: Box):
    box.has("a")
    box.write()
    with box.file.open("a") as file:
        file.write("hooks: {on_startup: {preload: [a]}}\n")
    box.start()
    eventually(lambda: "starting -> active" in box.log)


def test_a_model_of_on_idle_is_active_whenever_no_other_is_asked(box: Box):
    box.has("a", ttl=1)
    box.has("b")
    box.write()
    with box.file.open("a") as file:
        file.write("hooks: {on_idle: {wake: [a]}}\nminLoaded: 2s\n")
    box.start()
    eventually(lambda: "a (box/a): starting -> active" in box.log)
    asked = time.monotonic()
    first = box.ask("a")
    box.ask("b")
    assert "a (box/a): parking -> parked" in box.log
    assert time.monotonic() - asked < 30, "a request does not wait for its turn to be paid off"
    eventually(lambda: "a (box/a): waking -> active" in box.log)
    assert "b (box/b): parking -> parked" in box.log
    told = box.ask("a")
    assert (told["pid"], told["counter"]) == (first["pid"], first["counter"] + 1)


def test_models_that_always_want_their_gpu_take_turns_unasked(box: Box):
    box.has("a", turn="always")
    box.has("b", turn="always", weight=200)
    box.start()
    for step in ("a (box/a): parking -> parked", "b (box/b): starting -> active"):
        eventually(lambda step=step: step in box.log)
    eventually(lambda: "a (box/a): waking -> active" in box.log)
    assert "b (box/b): parking -> parked" in box.log
    assert box.never_two()


def test_a_model_without_vram_shares_its_gpu_once_it_was_measured(box: Box):
    for name in "ab":
        box.has(name, size=20, vram=None)
    box.start()
    for name in "aba":
        box.ask(name)
    assert box.log.count("parked in RAM") == 2, "each has its GPU to itself until its first park"
    box.ask("b"), box.ask("a")
    assert box.log.count("parked in RAM") == 2
    for signum in (signal.SIGKILL, signal.SIGTERM):
        box.end(signum)
        box.start()
        box.ask("a"), box.ask("b")
        assert box.log.count("parked in RAM") == 2, "the next start knows what they take"


def test_a_model_that_cooperates_does_its_part(box: Box):
    box.has("a", cooperate="http")
    box.has("b", cooperate="vllm")
    box.start()
    for name in "aba":
        box.ask(name)
    asked = [line for line in box.get("/logs").decode().splitlines() if '"asked"' in line]
    assert asked == ['{"asked": "/kyb/park"}', '{"asked": "/kyb/wake"}']
    assert "its part of the park: POST /sleep?level=1 is answered 400; continuing" in box.log


def test_an_idle_model_is_parked(box: Box):
    box.has("a", ttl=1)
    box.start()
    first = box.ask("a")
    eventually(lambda: "parked in RAM" in box.log)
    assert box.ask("a")["counter"] == first["counter"] + 1


def asks_for_seconds(box: Box, model: str) -> subprocess.Popen[bytes]:
    body = json.dumps({"model": model, "messages": []})
    return subprocess.Popen(
        [
            *("curl", "-sm", "4", "-H", "Content-Type: application/json", "-d", body),
            f"http://127.0.0.1:{box.port}/v1/chat/completions",
        ],
        stdout=subprocess.PIPE,
    )


def test_a_model_starts_only_once_it_is_healthy(box: Box):
    box.has("a", checkEndpoint="/no-such-path")
    box.start()
    asking = asks_for_seconds(box, "a")
    assert asking.communicate()[0] == b""
    assert "waiting -> starting" in box.log
    assert "starting -> active" not in box.log


def test_a_start_may_take_as_long_as_the_models_own_limit(box: Box):
    box.has("a", checkEndpoint="/no-such-path", healthCheckTimeout=2)
    box.start()
    asking = asks_for_seconds(box, "a")
    eventually(lambda: "it does not serve 2 s after its start" in box.log)
    asking.communicate()


def test_memory_of_other_programs_is_counted_and_left_alone(box: Box):
    other = subprocess.Popen(
        [*AS_USER, python(), "-c", HOLD, str(30 * MIB)], env=box.environment, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        box.has("a", size=20)
        box.has("b", size=40)
        box.start()
        assert box.ask("a")["counter"] == 1
        time.sleep(2.5)  # two looks of the guard
        assert other.poll() is None
        assert "30.0" in box.log or "0.0 GiB of GPU" in box.log
    finally:
        other.kill()
        other.communicate()
    assert box.ask("b")["counter"] == 1


HOLD = """
import sys, time
from cuda.bindings import driver as d
def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) > 1 else None
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
ok(d.cuMemAlloc(int(sys.argv[1])))
print("up", flush=True)
time.sleep(1000)
"""


def test_a_model_whose_command_ends_is_started_again_when_it_is_asked(box: Box):
    box.has("a")
    box.start()
    first = box.ask("a")
    os.kill(first["pid"], signal.SIGKILL)
    # A request that was sent before the box knows may have been answered: it is not sent again.
    eventually(lambda: "its command ended with status 137" in box.log)
    again = box.ask("a")
    assert again["counter"] == 1
    assert again["boot"] != first["boot"]


def test_term_ends_all_models_parked_ones_too(box: Box):
    box.has("a")
    box.has("b")
    box.start()
    pids = [box.ask(name)["pid"] for name in "ab"]
    assert box.end() == 0
    assert not any(map(lives, pids))
    assert box.inits() == []


def test_a_second_box_of_the_same_user_is_refused(box: Box):
    box.has("a")
    box.start()
    second = subprocess.run(
        box.command, env=box.environment, capture_output=True, timeout=120, check=False, cwd=ROOT
    )
    assert second.returncode == 1
    assert b"Traceback" not in second.stderr
    assert box.ask("a")["counter"] == 1


def test_the_first_run_writes_what_it_found_and_serves_it(box: Box):
    environment = {**box.environment, "XDG_CONFIG_HOME": str(box.folder / "config")}
    words = [word for word in box.command if word != str(box.file)]
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(4)]
    finally:
        process.terminate()
        process.communicate()
    assert told[0] == "GPUs: toy (0 GiB)\n"
    file = box.folder / "config" / "kybernate" / "models.yaml"
    assert str(file) in told[3]
    assert "listen: 127.0.0.1:8080" in file.read_text()


@pytest.mark.parametrize("options", [(), ("--keep",)])
def test_memory_of_simulated_gpus_goes_with_the_box_unless_it_is_kept(
    box: Box, options: tuple[str, ...]
):
    for name in ("SIMGPU_DIR", "LD_LIBRARY_PATH"):
        del box.environment[name]
    box.has("a")
    box.start("--simulate", *options)
    assert box.process is not None
    variables = Path(f"/proc/{box.process.pid}/environ").read_text().split("\0")
    (folder,) = (Path(one[11:]) for one in variables if one.startswith("SIMGPU_DIR="))
    try:
        assert box.ask("a")["counter"] == 1
        assert box.end() == 0
        assert folder.exists() == bool(options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
