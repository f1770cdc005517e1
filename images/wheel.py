"""The wheel of all of Kybernate, for `pip install`: the same bytes from the same sources.

- `kybernate/` is as it is in the sources; the services' packages lie in `kybernate/services`, see
  `kybernate.programs`; `kybernate/native` has process 1, kyb-enter and the simulated driver. CRIU,
  which is under another licence, is not in it.
- `kybernate/given` has what people take from it: the schema for their editors, the page of all
  keys, the unit for systemd.
- It needs what one box needs (`local` of pyproject.toml); a cluster's parts have their extras.
- Its tag says manylinux_2_28: kyb-init and kyb-enter are static, the driver's libraries are linked
  for that glibc. zig makes them all: none has anything of this machine's compiler or C library.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate.errors import KybernateError

from . import wheels, zig
from .cache import REPOSITORY

if TYPE_CHECKING:
    from .cache import Progress

OUT = REPOSITORY / "build" / "dist"
PLATFORM = "manylinux_2_28_x86_64"
_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
_PACKAGES = _PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
SERVICES = tuple(one.rstrip("*") for one in _PACKAGES if one != "kybernate*")
_EPOCH = (2020, 1, 1, 0, 0, 0)
GIVEN = (
    "config/local/kybernate.service",
    "config/models.schema.json",
    "docs/reference/serving/models-file.md",
)
PARTS = ("checkpoint", "control", "node", "proxy", "registry", "traces")
"""Extras of a cluster's parts, which keep them: `local` it has as a matter of course."""
_PROGRAMS = (
    "kybernate/native/kyb-init",
    "kybernate/native/kyb-enter",
    "kybernate/native/simgpu/simgpu",
)
_BUILD = """
import sys
from setuptools import build_meta
options = ["--plat-name", sys.argv[2], "--python-tag", "py3"]
build_meta.build_wheel(sys.argv[1], {"--build-option": options})
"""


def house(progress: Progress) -> Path:
    """A folder of what pip puts beside it, with all of PARTS. Raises KybernateError."""
    return wheels.house(progress, "local", *PARTS)


def build(progress: Progress, out: Path = OUT) -> Path:
    """Make the wheel. Raises KybernateError."""
    compiler = zig.ensure(progress)
    with tempfile.TemporaryDirectory(prefix="kyb-wheel-") as made:
        tree, wheels = Path(made) / "tree", Path(made) / "wheels"
        progress("compiling the native parts")
        _native(tree / "kybernate" / "native", compiler)
        progress("packing")
        _sources(tree)
        (tree / "pyproject.toml").write_text(_project())
        environ = {**os.environ, "SOURCE_DATE_EPOCH": "1577836800"}
        argv = [sys.executable, "-c", _BUILD, str(wheels), PLATFORM]
        wheels.mkdir()
        done = subprocess.run(
            argv, cwd=tree, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise KybernateError(f"setuptools failed: {done.stderr[-500:]}")
        (found,) = wheels.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        return _repacked(found, out / found.name)


def _native(folder: Path, compiler: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("kyb-init", "kyb-enter"):
        zig.make(REPOSITORY / "native" / name, folder, compiler, zig.STATIC)
    zig.make(REPOSITORY / "native" / "simgpu", folder / "simgpu", compiler, zig.SHARED)


def _sources(tree: Path) -> None:
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "-z",
            "-co",
            "--exclude-standard",
            "kybernate",
            *SERVICES,
            "README.md",
            "LICENSE",
            *GIVEN,
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        first = name.partition("/")[0]
        below = "kybernate/given" if name in GIVEN else ""
        place = tree / ("kybernate/services" if first in SERVICES else below) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, place)


def _project() -> str:
    """pyproject.toml of the wheel: the project's, with what one box needs as a matter of course."""
    project = dict(_PROJECT["project"])
    extras = dict(project.pop("optional-dependencies"))
    project["dependencies"] = sorted([*project["dependencies"], *extras.pop("local")])
    scripts = project.pop("scripts")
    del extras["dev"]
    tables: dict[str, Any] = {
        "build-system": {"requires": ["setuptools>=77"], "build-backend": "setuptools.build_meta"},
        "project": project,
        "project.scripts": scripts,
        "project.optional-dependencies": extras,
        # Namespaces, too: kybernate/services is a folder and no package.
        "tool.setuptools.packages.find": {"include": ["kybernate*"], "namespaces": True},
        "tool.setuptools.package-data": {"*": ["**/*"]},
    }
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{json.dumps(key)} = {_toml(value)}" for key, value in values.items()]
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    # What JSON and TOML write alike: texts, lists of texts, true and false.
    return json.dumps(value)


def _repacked(wheel: Path, target: Path) -> Path:
    """The same files in order, of one date, with modes that depend on no umask."""
    part = target.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(part, "w") as new:
        for name in sorted(old.namelist()):
            if name.endswith("/"):
                continue
            entry = zipfile.ZipInfo(name, _EPOCH)
            mode = 0o755 if name in _PROGRAMS or name.endswith((".so.1",)) else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(entry, old.read(name), compresslevel=9)
    part.rename(target)
    return target
