"""The layers of locked wheels: what every service needs, and what one extra adds to that."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError, KybernateError

from . import userland
from .cache import REPOSITORY, cache_root, digest_of, made_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from .cache import Progress

LOCK = REPOSITORY / "requirements.lock"
PROJECT = REPOSITORY / "pyproject.toml"
SITE = "usr/local/lib/python3.11/dist-packages"
"""Where Debian's Python looks by itself."""

COMMON = "common"
CLIENT = "kubernetes"

_UNUSED = frozenset({"aiohttp", "aiohttp-retry", "tzdata"})
"""What the Kubernetes client wants for its asynchronous half, which is left out below, and for
other clocks than UTC."""

PIP_LIMIT = 600.0
"""Seconds that fetching one layer's wheels may take."""

_FORMAT = "2"
_GLIBC = range(36, 16, -1)
"""Minor versions of glibc 2 whose wheels run on Debian 12."""

_PRUNED_FOLDERS = frozenset({"tests", "test", "bin", "include", "share", "__pycache__"})
_PRUNED_SUFFIXES = frozenset({".pyi", ".pxd", ".pyx", ".pxi", ".c", ".h", ".hpp", ".cpp", ".typed"})
_PRUNED_NOTES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "WHEEL"})
"""pip's notes about this installation; they hold paths of this host."""

_PRUNED_PARTS = (
    "kubernetes/aio",
    "kubernetes/e2e_test",
    *("pygments/lexers/[a-z]*", "pygments/styles/[a-z]*"),
    *(f"cuda/bindings/{name}.cpython*" for name in ("nvml", "cufile", "cudla", "nvvm", "runtime")),
    *(f"cuda/bindings/_internal/{name}.cpython*" for name in ("cufile", "cudla", "nvvm", "nvml")),
    *("cuda/bindings/_v2", "cuda/bindings/nvfatbin.cpython*", "cuda/bindings/nvjitlink.cpython*"),
)
"""Parts of packages that no service imports, and that are larger than the rest of them."""


def locked(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Each requirement of a lock file: its lines for pip, and who wants it.

    Raises ConfigError for a file that isn't what `uv pip compile` writes.
    """
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        name = re.match(r"([A-Za-z0-9._-]+)==", block)
        if name is None:
            continue
        lines = [line for line in block.splitlines() if not line.lstrip().startswith("#")]
        wanted = re.findall(r"^\s+#\s+(?:via\s+)?([A-Za-z0-9._-]+)", block, re.MULTILINE)
        found[_plain(name[1])] = ("\n".join(lines), frozenset(map(_plain, wanted)) - {"via"})
    if not found:
        raise ConfigError("requirements.lock", "it names no requirement; run `make lock`")
    return found


def closure(lock: Mapping[str, tuple[str, frozenset[str]]], roots: Iterable[str]) -> frozenset[str]:
    """The roots and everything that they want, directly or not."""
    found = {_plain(root) for root in roots}
    unknown = found - set(lock)
    if unknown:
        raise ConfigError("requirements.lock", f"{min(unknown)} isn't in it; run `make lock`")
    while True:
        more = {name for name, (_, wanted_by) in lock.items() if wanted_by & found} - found
        if not more:
            return frozenset(found)
        found |= more


def requirements(layer: str) -> str:
    """The locked lines of a layer, less what is in the layers below it.

    COMMON is what every service needs, CLIENT the Kubernetes client, the others are the project's
    extras of these names.
    """
    project = tomllib.loads(PROJECT.read_text())["project"]
    lock = locked(LOCK.read_text())
    common = closure(lock, map(_name, project["dependencies"]))
    synchronous = {name: entry for name, entry in lock.items() if name not in _UNUSED}
    client = closure(synchronous, [CLIENT]) - common
    if layer == COMMON:
        chosen = common
    elif layer == CLIENT:
        chosen = client
    else:
        wanted = map(_name, project["optional-dependencies"][layer])
        chosen = closure(lock, (name for name in wanted if name != CLIENT)) - common - client
    return "\n".join(lock[name][0] for name in sorted(chosen)) + "\n"


def alone(*extras: str) -> str:
    """The locked lines of the project with these extras, all that they want together."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    lock = locked(LOCK.read_text())
    return "\n".join(lock[name][0] for name in sorted(closure(lock, map(_name, wanted)))) + "\n"


def build(layer: str, progress: Progress) -> Path:
    """The folder of a layer's files, from the cache if it is there. Raises KybernateError."""
    lines = requirements(layer)
    base = userland.build(progress)
    key = digest_of(_FORMAT, lines, repr(_PRUNED_PARTS), base.name)
    target = cache_root() / "images" / f"wheels-{layer}-{key}"

    def fill(part: Path) -> None:
        progress(f"fetching the images' wheels: {layer}")
        install(lines, part)
        _prune(part / SITE)
        userland.compile_modules(base, part / SITE, keep_source=False, place=f"/{SITE}")

    return made_once(target, fill)


def install(lines: str, target: Path, python: str = "3.11", site: str = SITE) -> None:
    """What pip makes of these lines of a lock, in `site` of a new folder, for this Python; only
    wheels that run on Debian 12. Raises KybernateError."""
    target.mkdir(parents=True)
    listed = target / "requirements.txt"
    listed.write_text(lines)
    options = ["--quiet", "--require-hashes", "--no-deps"]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC]
    platform = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for one in (*platforms, "manylinux2014_x86_64"):
        platform += ["--platform", one]
    where = ["--target", str(target / site), "-r", str(listed)]
    _pip("install", *options, *platform, "--no-compile", *where)
    listed.unlink()


def house(progress: Progress, *extras: str) -> Path:
    """A folder of the wheels that pip needs offline for the project with these extras, of just the
    locked versions, for this Python. From the cache if they are there. Raises KybernateError."""
    lines = alone(*extras)
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    target = cache_root() / "wheelhouse" / digest_of(lines, python)

    def fill(part: Path) -> None:
        progress("fetching the wheels that a fresh venv gets")
        part.mkdir(parents=True)
        listed = part / "requirements.txt"
        listed.write_text(lines)
        options = ["--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:"]
        _pip("download", *options, "-d", str(part), "-r", str(listed))
        listed.unlink()

    return made_once(target, fill)


def _pip(*words: str) -> None:
    argv = [sys.executable, "-m", "pip", words[0], "--disable-pip-version-check", *words[1:]]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=PIP_LIMIT, check=False)
    if run.returncode:
        said = " / ".join(run.stderr.strip().splitlines()[-3:])
        raise KybernateError(f"fetching the locked wheels failed: {said}")


def _prune(site: Path) -> None:
    for pattern in _PRUNED_PARTS:
        for path in sorted(site.glob(pattern)):
            _remove(path)
    for path in sorted(site.rglob("*"), reverse=True):
        inside_notes = path.parent.name.endswith(".dist-info")
        if (path.is_dir() and path.name in _PRUNED_FOLDERS) or (
            path.suffix in _PRUNED_SUFFIXES or (inside_notes and path.name in _PRUNED_NOTES)
        ):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    if found is None:
        raise ConfigError("pyproject.toml", f"{requirement!r} isn't a requirement")
    return found[0]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
