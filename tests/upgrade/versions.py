"""The releases that today's code is tried against, and their code on this machine."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from images import criu
from images.build import full_name
from images.cache import REPOSITORY, cache_root, file_lock
from kybernate.errors import KybernateError
from tests.cluster.fetched import images
from tests.cluster.fetched.layers import Image

RELEASES = {
    "0.1.0": "0d16993ef1475c7636f14d1078aa17e96460a220",
    "0.2.0": "92874c9a0b0a495b7c6390bf46da44d383c44ae3",
}
"""Commits of this repository, by the name of the release. For a new one add its line here, and run
`python -m tests.upgrade.record NAME` at once, whose files `make test` reads."""

TODAY = "today"
ORDER = (*RELEASES, TODAY)
PAIRS = tuple(itertools.pairwise(ORDER))
"""Releases that may stand side by side: see docs/design/0112."""
MAKE_LIMIT = 300.0
"""Seconds that building a release's native programs, its CRIU or an image may take."""

_CRIU = "from images import criu; print(criu.for_this_machine(lambda _: None))"
_SIDECAR = """
import pathlib, sys
from images import build, oci
from images.recipes import RECIPES
recipe, say = RECIPES["sidecar"], lambda _: None
layers = build.layers(recipe, say)
oci.write_archive(pathlib.Path(sys.argv[1]), sys.argv[2], layers, build.config(recipe, say))
"""


@dataclass(frozen=True, slots=True)
class Version:
    """One release: its name, and the folder with its code and what is built of it."""

    name: str
    tree: Path

    @property
    def kyb_init(self) -> Path:
        """Its process 1 of seats' containers."""
        return self.tree / "build" / "kyb-init"

    @property
    def kyb_enter(self) -> Path:
        """What its agent enters containers with."""
        return self.tree / "build" / "kyb-enter"

    @property
    def criu(self) -> Path:
        """What its agent's image has."""
        return criu.for_this_machine(print) if self.name == TODAY else Path(self.python(_CRIU))

    @property
    def sidecar(self) -> str:
        """The full name of its sidecar's image, on the nodes of a cluster with `sidecar_image`."""
        name = full_name("sidecar")
        return name if self.name == TODAY else f"{name.rpartition(':')[0]}:{self.name}-pinned"

    @property
    def sidecar_image(self) -> str:
        """What ClusterSpec.images calls it."""
        return "sidecar" if self.name == TODAY else f"sidecar-{self.name}"

    def knows(self, service: str, setting: str) -> bool:
        """Whether its service has this setting; it refuses those that it doesn't know."""
        declared = (self.tree / "kybernate" / "settings" / f"{service}.py").read_text()
        return f"\n    {setting}: " in declared

    def python(self, text: str, *arguments: str) -> str:
        """What a few lines of Python that run on its code print. Raises KybernateError."""
        return _run([sys.executable, "-P", "-c", text, *arguments], self.tree).strip()

    def command(self, *words: str) -> str:
        """What its `kybernate` prints. Raises KybernateError."""
        return self.python("from kybernate.cli import main; main()", *words)

    def module(self, *words: str) -> list[str]:
        """The command line of one of its modules; see `environment`."""
        return [sys.executable, "-P", "-m", *words]

    @property
    def environment(self) -> dict[str, str]:
        """What has Python take its code."""
        return {"PYTHONPATH": str(self.tree)}


@functools.cache
def version(name: str) -> Version:
    """The release of this name, taken out of the repository and built if the cache lacks it.

    Raises KybernateError if it is unknown, or the clone lacks its commit.
    """
    if name == TODAY:
        return Version(name, REPOSITORY)
    if name not in RELEASES:
        raise KybernateError(f"release {name} is unknown; there are {', '.join(RELEASES)}")
    commit = RELEASES[name]
    made = Version(name, cache_root() / "releases" / commit[:12])
    with file_lock(made.tree.with_suffix(".lock"), MAKE_LIMIT):
        if not made.tree.exists():
            _take_out(commit, made.tree)
    images.BUILDERS[made.sidecar_image] = functools.partial(_sidecar, made)
    return made


def _take_out(commit: str, target: Path) -> None:
    try:
        _run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], REPOSITORY)
    except KybernateError as error:
        raise KybernateError(
            f"this clone lacks commit {commit}, which is a release; run git fetch --unshallow"
        ) from error
    part = target.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    archive = part.with_suffix(".tar")
    _run(["git", "archive", "--output", str(archive), commit], REPOSITORY)
    _run(["tar", "-xf", str(archive), "-C", str(part)], REPOSITORY)
    archive.unlink()
    _run(["make", "--no-print-directory", "-C", str(part / "native")], REPOSITORY)
    part.rename(target)


def _sidecar(made: Version, _progress: object) -> Image:
    target = made.tree.with_name(f"{made.tree.name}-sidecar.oci.tar")
    with file_lock(target.with_suffix(".lock"), MAKE_LIMIT):
        if not target.exists():
            part = target.with_suffix(".part")
            made.python(_SIDECAR, str(part), made.sidecar)
            part.rename(target)
    return Image(made.sidecar, target)


def _run(argv: list[str], tree: Path) -> str:
    done = subprocess.run(
        argv,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=MAKE_LIMIT,
        check=False,
    )
    if done.returncode:
        said = " / ".join(done.stderr.strip().splitlines()[-4:])
        raise KybernateError(f"{' '.join(argv[:4])} failed in {tree}: {said}")
    return done.stdout
