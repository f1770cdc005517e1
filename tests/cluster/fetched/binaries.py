"""The Kubernetes and etcd commands: built from the Go module proxy, or given by the user.

Versions are locked by kube/go.mod and kube/go.sum; the Go tool verifies every module against
them. What is built lives in the cache and is shared by all targets.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError

from images.cache import file_lock
from kybernate.errors import ConfigError, KybernateError
from tests.cluster.layout import REPOSITORY, cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.cluster.layout import Progress

KUBERNETES_VERSION = "1.34.2"
ETCD_VERSION = "3.6.4"
MODULE = REPOSITORY / "tests" / "cluster" / "kube"
CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-controller-manager", "kubectl")
ALL = ("kube-apiserver", "kube-scheduler", "kubelet", "kube-controller-manager", "etcd", "kubectl")
BUILD_LIMIT = 3600.0
"""Seconds that the build of one command may take."""

_SECONDS_PER_PACKAGE = 0.16
"""Measured on 2 idle cores, downloads included: what is foretold before anything is compiled."""
_TELLS = 100
"""So many packages must be compiled before their speed says how long the others take."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder that holds the commands."""

    folder: Path

    def path(self, name: str) -> Path:
        """The command's path."""
        return self.folder / name


def ensure(names: Sequence[str], progress: Progress) -> Binaries:
    """The commands `names`, from $KYB_KUBE_BIN if set, else built.

    Raises ConfigError if what is given has the wrong version or checksum, KybernateError if a
    build fails.
    """
    given = os.environ.get("KYB_KUBE_BIN")
    if given:
        return _given(given, names, progress)
    folder = cache_root() / "kube" / f"v{KUBERNETES_VERSION}-{_lock_hash()[:12]}"
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / ".lock"):
            _build([name for name in missing if not (folder / name).exists()], folder, progress)
    return Binaries(folder)


def to_build(names: Sequence[str]) -> list[str]:
    """Those of `names` that `ensure` would have to build now."""
    if os.environ.get("KYB_KUBE_BIN"):
        return []
    folder = cache_root() / "kube" / f"v{KUBERNETES_VERSION}-{_lock_hash()[:12]}"
    return [name for name in names if not (folder / name).exists()]


def ldflags() -> str:
    """The link flags that stamp the version into each command."""
    package = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES_VERSION.split(".")
    stamps = {
        "gitVersion": f"v{KUBERNETES_VERSION}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    return "-s -w " + " ".join(f"-X {package}.{key}={value}" for key, value in stamps.items())


def build_command(name: str, out: Path) -> list[str]:
    """The `go build` of one command; -trimpath keeps the build cache valid across folders."""
    flags = ["-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", ldflags()]
    return ["go", "build", *flags, "-o", str(out), _package(name)]


def _package(name: str) -> str:
    return "go.etcd.io/etcd/server/v3" if name == "etcd" else f"k8s.io/kubernetes/cmd/{name}"


class Forecast:
    """How long builds take that are done one after the other, by the packages that they compile.

    `packages`: how many each compiles, by name; what is compiled already isn't told of by Go, and
    is done in no time.
    """

    def __init__(self, packages: Mapping[str, int]) -> None:
        self._packages = dict(packages)
        self._before = 0
        self._compiled = 0
        self._began: float | None = None

    def compiled(self, now: float) -> None:
        """Go tells that it compiles the next package, at this time (s)."""
        self._began = now if self._began is None else self._began
        self._compiled += 1

    def built(self, name: str) -> None:
        """All of this one is there."""
        self._before += self._packages.pop(name)
        self._compiled = self._before

    def left(self, now: float) -> float:
        """Seconds that all which is left takes."""
        left = max(0, self._before + sum(self._packages.values()) - self._compiled)
        if self._began is None or self._compiled < _TELLS:
            return left * _SECONDS_PER_PACKAGE
        return left * (now - self._began) / self._compiled

    def told(self, name: str, now: float) -> str:
        """How far the build of this one is, in a line."""
        done, left = self._compiled - self._before, self.left(now)
        return (
            f"{name}: {done:,} of {self._packages[name]:,} packages; about {_time(left)} left "
            "for all"
        )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def check_version(name: str, path: Path) -> None:
    """Raises ConfigError unless the command says the locked version."""
    wanted = ETCD_VERSION if name == "etcd" else f"v{KUBERNETES_VERSION}"
    argv = [str(path), "version", "--client"] if name == "kubectl" else [str(path), "--version"]
    try:
        run = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        raise ConfigError("KYB_KUBE_BIN", f"{path} can't be run: {error.strerror}") from error
    words = run.stdout.replace(",", " ").split()
    if wanted not in words:
        said = (run.stdout + run.stderr).strip().splitlines()[:1]
        raise ConfigError("KYB_KUBE_BIN", f"{path} must be version {wanted}, but says {said}")


def check_sum(path: Path, sum_file: Path) -> None:
    """Raises ConfigError unless `sum_file` (made by sha256sum, or the bare sum) fits `path`."""
    if not sum_file.exists():
        raise ConfigError(
            "KYB_KUBE_BIN", f"{sum_file} is missing; put the SHA-256 of {path.name} beside it"
        )
    wanted = sum_file.read_text().split()[0].lower()
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise ConfigError("KYB_KUBE_BIN", f"{path} has SHA-256 {found}, {sum_file} says {wanted}")


def _lock_hash() -> str:
    text = (MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes()
    return hashlib.sha256(text + ldflags().encode()).hexdigest()


def _build(names: Sequence[str], folder: Path, progress: Progress) -> None:
    if not names:
        return
    order = sorted(names, key=ALL.index)
    started = time.monotonic()
    progress(f"building {', '.join(order)} from source; the result is kept")
    forecast = Forecast(_to_compile(order))
    progress(
        f"  about {_time(forecast.left(started))} the first time on two idle cores, seconds once "
        "Go's build cache is warm"
    )
    for name in order:
        _build_one(name, folder, forecast, progress)
        forecast.built(name)
    progress(f"built {len(names)} commands in {time.monotonic() - started:.0f} s: {folder}")


def _to_compile(order: Sequence[str]) -> dict[str, int]:
    """How many packages each command needs that those before it don't."""
    known: set[str] = set()
    found = {}
    for name in order:
        needs = {*_go(["list", "-mod=readonly", "-deps", _package(name)]).stdout.split()}
        found[name] = len(needs - known)
        known |= needs
    return found


def _go(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    with _go_is_there():
        run = subprocess.run(
            ["go", *argv],
            cwd=MODULE,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT,
            check=False,
        )
    _succeeded(run.returncode, f"go {argv[0]}", run.stderr)
    return run


def _environment() -> dict[str, str]:
    return {**os.environ, "GOFLAGS": "", "GOWORK": "off"}


@contextmanager
def _go_is_there() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise KybernateError(
            "Go is missing: install it (https://go.dev/doc/install), or set KYB_KUBE_BIN to "
            "a folder or URL of the official Kubernetes binaries"
        ) from error


def _succeeded(status: int, what: str, said: str) -> None:
    if status:
        tail = "\n".join(said.strip().splitlines()[-8:])
        raise KybernateError(f"{what} failed; Go said:\n{tail}")


def _build_one(name: str, folder: Path, forecast: Forecast, progress: Progress) -> None:
    part = folder / f".{name}.part"
    started = time.monotonic()
    said: list[str] = []
    with (
        _go_is_there(),
        subprocess.Popen(
            build_command(name, part),
            cwd=MODULE,
            env=_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as build,
        _watched(
            build, started + BUILD_LIMIT, lambda: forecast.told(name, time.monotonic()), progress
        ),
    ):
        for line in build.stderr or ():
            said.append(line)
            # -v: one line for each package, and of downloads "go: downloading …".
            if not line.startswith(("go: ", "#", "\t")):
                forecast.compiled(time.monotonic())
    _succeeded(build.returncode, f"building {name}", "".join(said))
    part.replace(folder / name)
    progress(f"  {name}: {time.monotonic() - started:.0f} s")


@contextmanager
def _watched(
    build: subprocess.Popen[str],
    deadline: float,
    told: Callable[[], str],
    progress: Progress,
    every: float = 20.0,
) -> Iterator[None]:
    """Tells now and then how far the build is, and ends it at its deadline."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(every):
            progress(f"  {told()}")
            if time.monotonic() > deadline:
                build.kill()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _given(given: str, names: Sequence[str], progress: Progress) -> Binaries:
    remote = given.startswith(("https://", "http://", "file://"))
    folder = _downloaded(given.rstrip("/"), names, progress) if remote else Path(given).resolve()
    for name in names:
        path = folder / name
        if not path.exists():
            raise ConfigError("KYB_KUBE_BIN", f"{path} is missing; it must hold {', '.join(ALL)}")
        check_sum(path, folder / f"{name}.sha256")
        check_version(name, path)
    return Binaries(folder)


def _downloaded(url: str, names: Sequence[str], progress: Progress) -> Path:
    folder = cache_root() / "kube" / f"given-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / ".lock"):
        for name in names:
            for file in (f"{name}.sha256", name):
                if not (folder / file).exists():
                    progress(f"fetching {url}/{file}")
                    _download(f"{url}/{file}", folder / file)
            (folder / name).chmod(0o755)
    return folder


def _download(url: str, target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, part.open("wb") as file:  # noqa: S310 - the user's own URL, checked by checksum
            shutil.copyfileobj(answer, file, 1 << 20)
    except (URLError, OSError) as error:
        raise ConfigError("KYB_KUBE_BIN", f"{url} can't be fetched: {error}") from error
    part.replace(target)
