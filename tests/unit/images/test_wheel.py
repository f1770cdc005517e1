"""The wheel: the same bytes again, nothing but ours in it, and programs that run from it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
import yaml

from bench.processes import free_port
from images import wheel
from images.cache import REPOSITORY
from tests.local.__main__ import ask, until_it_listens

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow]

PROGRAMS = tuple(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"])
COMPLETES = "kubectl_complete-kyb"
"""kubectl calls it with the words to complete, and asks it for nothing else."""
EACH = """
import importlib, pkgutil
from kybernate import local, programs
programs._find()
for module in pkgutil.walk_packages(local.__path__, "kybernate.local."):
    if module.name != "kybernate.local.nvme":
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    return wheel.build(lambda _: None, tmp_path_factory.mktemp("first"))


def fresh(home: Path, what: str) -> Path:
    """The programs' folder of a new venv: pip puts in what the wheel's METADATA asks for, of the
    locked versions, and nothing else. The registry isn't asked."""
    venv.create(home, with_pip=False)
    house = wheel.house(lambda _: None)
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", home / "bin/python"]
    options = ["--quiet", "--no-compile", "--no-index", "--find-links", house]
    subprocess.run([*pip, "install", *options, what], check=True, timeout=240)
    return home / "bin"


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """As `pip install kybernate` makes it."""
    return fresh(tmp_path_factory.mktemp("home") / "venv", str(built))


@pytest.fixture(scope="module")
def services(built, tmp_path_factory) -> Path:
    """With what a cluster's parts want, too."""
    extras = ",".join(wheel.PARTS)
    return fresh(
        tmp_path_factory.mktemp("services") / "venv", f"kybernate[{extras}] @ {built.as_uri()}"
    )


def said(installed: Path, program: str, *args: str) -> str:
    """What a program says, begun where no sources are."""
    done = subprocess.run(
        [installed / program, *args],
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_sources_give_the_same_bytes(built, tmp_path, monkeypatch):
    """Also on a machine that has no compiler of its own."""
    for name in ("cc", "gcc", "clang"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    umask = os.umask(0o077)
    try:
        again = wheel.build(lambda _: None, tmp_path / "again")
    finally:
        os.umask(umask)
    assert again.name == built.name
    assert again.read_bytes() == built.read_bytes()


def test_nothing_but_kybernate_is_at_the_top_and_no_criu_is_in_it(built):
    assert built.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
        modes = {one.filename: one.external_attr >> 16 & 0o777 for one in archive.infolist()}
        needs = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kybernate"}
    native = {name for name in names if "/native/" in name}
    libraries = {f"kybernate/native/simgpu/{one}.so.1" for one in ("libcuda", "libnvidia-ml")}
    programs = {f"kybernate/native/{one}" for one in ("kyb-init", "kyb-enter", "simgpu/simgpu")}
    assert native == programs | libraries
    assert all(modes[name] == 0o755 for name in native)
    assert "kybernate/services/proxy/page/assets/main.js" in names
    assert "kybernate/local/simgpu/spec.py" in names
    assert "Requires-Dist: aiohttp" in needs.replace("Requires-Dist: aiohttp-", "")


def test_people_are_given_the_schema_and_the_unit(built):
    with zipfile.ZipFile(built) as archive:
        for name in wheel.GIVEN:
            assert archive.read(f"kybernate/given/{name}") == (REPOSITORY / name).read_bytes()


def test_its_libraries_ask_for_no_newer_glibc(built):
    with zipfile.ZipFile(built) as archive:
        for name in archive.namelist():
            if "/native/simgpu/" in name:
                asked = re.findall(rb"GLIBC_2\.(\d+)", archive.read(name))
                assert asked, name
                assert max(map(int, asked)) <= 28


def test_each_program_begins(services):
    for program in set(PROGRAMS) - {COMPLETES}:
        assert "Usage:" in said(services, program, "--help")
    assert said(services, COMPLETES, "sea").splitlines()[-1] == ":4"


def test_local_mode_has_all_its_modules(installed):
    """But for NVMe's, which takes the extra `checkpoint`: without it models stay in RAM."""
    assert "Usage:" in said(installed, "kybernate", "serve", "--help")
    said(installed, "python", "-c", EACH)


def test_the_first_run_names_files_that_are_there(installed, home):
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CONFIG_HOME": str(home / "of me")}
    words = [installed / "kybernate", "serve"]
    subprocess.run(words, cwd="/", env=own, capture_output=True, timeout=60, check=False)
    written = (home / "of me/kybernate/models.yaml").read_text()
    schema = re.match(r"# yaml-language-server: \$schema=file://(\S+)\n", written)
    assert schema is not None
    assert "readyWithin" in Path(unquote(schema[1])).read_text()
    (keys,) = re.findall(r"# All keys: (/.*\.md)\.", written)
    assert "models.*.readyWithin" in Path(keys).read_text()
    (unit,) = re.findall(r": (/.*\.service)", written)
    assert "[Service]" in Path(unit).read_text()
    site = installed.parent / "lib"
    assert all(Path(one).is_relative_to(site) for one in (unquote(schema[1]), keys, unit))


def models(python: Path, port: int) -> str:
    """Two toy servers, of which the simulated GPU holds one. They are none of the wheel's."""
    toy = f"{python} -m tests.workloads.toy_server --host 127.0.0.1 --port ${{PORT}}"
    made = {
        name: {
            "cmd": f"{toy} --model {name} --bytes 300MiB --fill 1MiB",
            "env": [f"PYTHONPATH={REPOSITORY}"],
            "vram": "300MiB",
            "gpus": 1,
        }
        for name in "ab"
    }
    ports = {"listen": f"127.0.0.1:{port}", "startPort": free_port(16)}
    return yaml.safe_dump({**ports, "models": made})


@pytest.fixture
def home() -> Iterator[Path]:
    """With a path that is short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="kyb-wheel-") as made:
        yield Path(made)


def test_it_serves_and_swaps(installed, home):
    port, file, log = free_port(), home / "models.yaml", home / "log"
    file.write_text(models(installed / "python", port))
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    words = [installed / "kybernate", "serve", "--simulate=1", file]
    with log.open("wb") as output:
        serving = subprocess.Popen(words, cwd="/", env=own, stdout=output, stderr=output)
    try:
        until_it_listens(port, serving, log)
        told = [ask(port, name) for name in "aba"]
        assert [one["counter"] for one in told] == [1, 1, 2], log.read_text()
        assert all(one["checksum"] == one["expected"] for one in told)
        assert told[0]["pid"] == told[2]["pid"], "it was parked and not ended"
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
    assert not any(Path(f"/proc/{one['pid']}").exists() for one in told)


def test_the_services_names_are_free_for_others(installed):
    look = (
        "import importlib.util as u, kybernate; "
        f"print([n for n in {wheel.SERVICES!r} if u.find_spec(n)], kybernate.__file__)"
    )
    found = said(installed, "python", "-c", look)
    assert found.startswith("[] ")
    assert str(installed.parent) in found


def test_a_foreign_package_of_a_services_name_does_not_come_first(installed, tmp_path):
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    (site / "proxy.py").write_text("raise RuntimeError('foreign')")
    try:
        assert "Usage:" in said(installed, "kyb-proxy", "--help")
    finally:
        (site / "proxy.py").unlink()


def test_a_services_module_runs_as_a_program(installed):
    found = said(installed, "python", "-m", "kybernate.programs", "proxy", "--help")
    assert "Usage:" in found


def test_the_simulated_driver_loads(installed):
    (driver,) = installed.parent.glob(
        "lib/python*/site-packages/kybernate/native/simgpu/libcuda.so.1"
    )
    look = f"import ctypes; print(bool(ctypes.CDLL({str(driver)!r}).cuInit))"
    assert said(installed, "python", "-c", look).strip() == "True"
