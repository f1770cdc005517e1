"""Debian packages, unpacked into folders of the cache; the host's own packages stay as they are.

apt runs with an empty package database of its own and with the mirror that the host already uses.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError, KybernateError

from .cache import cache_root, file_lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cache import Progress

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = Path("/etc/apt")
APT_LIMIT = 600.0
"""Seconds that one apt call may take."""


@dataclass(frozen=True, slots=True)
class DebSet:
    """Packages of one suite.

    `packages` maps a name to the version that is known to work. The version is asked for first;
    a suite that moved on gives its current one instead. `closure` adds all dependencies.
    """

    name: str
    suite: str
    packages: tuple[tuple[str, str], ...]
    closure: bool = False

    @property
    def key(self) -> str:
        """Changes whenever what is asked for changes."""
        text = json.dumps([self.suite, self.packages, self.closure])
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class DebSource:
    """The upstream archive of a source package, wherever one of these suites still has it."""

    name: str
    version: str
    suites: tuple[str, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A folder with the files of a DebSet, and each package's version and SHA-256."""

    folder: Path
    manifest: dict[str, dict[str, str]]

    @property
    def digest(self) -> str:
        """Names exactly what was unpacked."""
        text = json.dumps(self.manifest, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def describe(self, package: str) -> str:
        """For messages: the package and its version."""
        return f"{package} {self.manifest.get(package, {}).get('version', '(not unpacked)')}"


def cached(debs: DebSet) -> bool:
    """True if `unpack` needs no network."""
    return (cache_root() / "debs" / debs.key / "manifest.json").exists()


def unpack(debs: DebSet, progress: Progress) -> Unpacked:
    """The packages' files, from the cache if they are there. Raises KybernateError."""
    target = cache_root() / "debs" / debs.key
    with file_lock(target.parent / f".{debs.key}.lock"):
        if not (target / "manifest.json").exists():
            names = ", ".join(name for name, _ in debs.packages)
            progress(f"unpacking {names} of Debian {debs.suite} into the cache")
            _fill(debs, target)
    manifest = json.loads((target / "manifest.json").read_text())
    return Unpacked(target / "root", manifest)


def fetch_source(source: DebSource, progress: Progress) -> Path:
    """The archive, from the cache if it is there. Raises KybernateError if none has this one."""
    target = cache_root() / "sources" / f"{source.name}-{source.sha256[:12]}"
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            progress(f"fetching the source of {source.name} {source.version}")
            _fetch_source(source, target)
    return target


def mirror(sources: Path = SOURCES) -> str:
    """The URL of the Debian mirror that this host uses. Raises ConfigError if it has none."""
    for line in _source_lines(sources):
        found = re.match(r"(?:URIs:|deb(?:\s+\[[^\]]*\])?)\s+((?:https?|mirror|file)\S+)", line)
        if found and "security" not in found[1] and "debian" in found[1]:
            return found[1]
    raise ConfigError(
        "/etc/apt", "no Debian mirror found; this needs a Debian host with apt sources"
    )


def _source_lines(sources: Path) -> Iterable[str]:
    parts = sources / "sources.list.d"
    main = sources / "sources.list"
    for file in [*sorted(parts.glob("*.sources")), main, *sorted(parts.glob("*.list"))]:
        if file.exists():
            yield from file.read_text().splitlines()


def _fill(debs: DebSet, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    work = target.with_name(f".{target.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    archives = work / "archives"
    (archives / "partial").mkdir(parents=True)
    apt = _Apt(debs.suite, work)
    apt.run("apt-get", "update")
    asked = [apt.wanted(name, version) for name, version in debs.packages]
    if debs.closure:
        apt.run("apt-get", "-y", "--download-only", "install", *asked)
    else:
        apt.run("apt-get", "download", *asked, cwd=archives)
    manifest: dict[str, dict[str, str]] = {}
    (work / "root").mkdir()
    for file in sorted(archives.glob("*.deb")):
        _dpkg("-x", str(file), str(work / "root"))
        name, version = _dpkg("-W", "--showformat=${Package} ${Version}", str(file)).split()
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        manifest[name] = {"version": version, "sha256": digest}
    (work / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))
    target.mkdir(parents=True)
    (work / "root").rename(target / "root")
    (work / "manifest.json").rename(target / "manifest.json")
    shutil.rmtree(work)


def _fetch_source(source: DebSource, target: Path) -> None:
    work = target.with_suffix(".part")
    shutil.rmtree(work, ignore_errors=True)
    asked = ("--download-only", "--tar-only", "source", f"{source.name}={source.version}")
    problems = []
    for suite in source.suites:
        archives = work / suite / "archives"
        (archives / "partial").mkdir(parents=True)
        apt = _Apt(suite, work / suite, "deb-src")
        try:
            apt.run("apt-get", "update")
            apt.run("apt-get", *asked, cwd=archives)
        except KybernateError as error:
            problems.append(str(error))
            continue
        for file in archives.glob(f"{source.name}_*.orig.tar.*"):
            found = hashlib.sha256(file.read_bytes()).hexdigest()
            if found == source.sha256:
                file.rename(target)
                shutil.rmtree(work)
                return
            problems.append(f"{file.name} of {suite} has SHA-256 {found}")
    raise KybernateError(
        f"the Debian mirror doesn't have the source of {source.name} {source.version} any more: "
        + "; ".join(problems)
    )


class _Apt:
    """apt with its own lists, its own empty package database and one suite."""

    def __init__(self, suite: str, work: Path, kind: str = "deb") -> None:
        for name in ("lists/partial", "cache", "parts", "preferences"):
            (work / name).mkdir(parents=True, exist_ok=True)
        (work / "status").touch()
        source = work / "source.list"
        source.write_text(f"{kind} [signed-by={KEYRING}] {mirror()} {suite} main\n")
        self._options = [
            "-qq",
            f"-oDir::State::Lists={work}/lists",
            f"-oDir::State::status={work}/status",
            f"-oDir::Etc::SourceList={source}",
            f"-oDir::Etc::SourceParts={work}/parts",
            "-oDir::Etc::Preferences=/dev/null",
            f"-oDir::Etc::PreferencesParts={work}/preferences",
            f"-oDir::Cache={work}/cache",
            f"-oDir::Cache::Archives={work}/archives",
            "-oAPT::Sandbox::User=root",
            "-oAPT::Install-Recommends=0",
            "-oAPT::Architecture=amd64",
            "-oAcquire::Languages=none",
            "-oAcquire::Retries=3",
            "-oDebug::NoLocking=1",
        ]

    def run(self, tool: str, *arguments: str, cwd: Path | None = None) -> str:
        argv = [tool, *self._options, *arguments]
        return _checked(argv, cwd, f"{tool} {arguments[0]} failed")

    def wanted(self, name: str, version: str) -> str:
        """`name=version` if the suite still has that version, else the name alone."""
        known = self.run("apt-cache", "madison", name)
        versions = {line.split("|")[1].strip() for line in known.splitlines() if "|" in line}
        if not versions:
            raise KybernateError(f"the Debian mirror has no package {name}; check `apt-get update`")
        return f"{name}={version}" if version in versions else name


def _dpkg(*arguments: str) -> str:
    return _checked(["dpkg-deb", *arguments], None, "dpkg-deb failed")


def _checked(argv: list[str], cwd: Path | None, failure: str) -> str:
    try:
        run = subprocess.run(
            argv, cwd=cwd, capture_output=True, text=True, timeout=APT_LIMIT, check=False
        )
    except FileNotFoundError as error:
        raise KybernateError(f"{argv[0]} is missing; this needs a Debian host") from error
    if run.returncode:
        tail = " / ".join(run.stderr.strip().splitlines()[-3:])
        raise KybernateError(f"{failure}: {tail}")
    return run.stdout
