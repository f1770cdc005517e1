"""Programs that tests need, built through the Go module proxy.

Each is built in a folder beside this file, whose go.mod and go.sum lock the build. It is built
once, and kept in the cache that all targets share.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from images.cache import REPOSITORY, cache_root, file_lock, silent
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from images.cache import Progress

_LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Program:
    """`package` is built in tests/kit/`beside`, or else in the folder of its name; `told` is what
    it is for people, and how long it takes to build."""

    name: str
    package: str
    told: str
    flags: tuple[str, ...] = ()
    beside: str = ""

    @property
    def folder(self) -> Path:
        """Where its go.mod lies."""
        return REPOSITORY / "tests" / "kit" / (self.beside or self.name)

    @property
    def binary(self) -> Path:
        """Where it is, or will be: another place for other sources."""
        sources = hashlib.sha256()
        for path in sorted(self.folder.iterdir()):
            sources.update(path.name.encode() + b"\0" + path.read_bytes())
        return cache_root() / self.name / sources.hexdigest()[:12] / self.name

    def why_not(self) -> str:
        """Why it can't be had here, as a sentence; empty if it can."""
        if self.binary.exists() or shutil.which("go"):
            return ""
        return f"Go is missing, so {self.name} can't be built here"

    def not_built(self) -> str:
        """That a test is skipped without it, as a sentence; empty if it is there."""
        if self.binary.exists():
            return ""
        return f"{self.name} is not built yet: python -m tests.kit --upstream does that"

    def ensure(self, progress: Progress = silent) -> Path:
        """The program, built if it isn't yet. Raises KybernateError."""
        binary = self.binary
        if reason := self.why_not():
            raise KybernateError(reason)
        with file_lock(binary.parent / ".lock"):
            if not binary.exists():
                progress(f"building {self.name}, {self.told}")
                self._build(binary)
        return binary

    def module(self, name: str) -> Path:
        """The sources of a module that it is built of. Raises KybernateError."""
        self._go("mod", "download", name)
        return Path(self._go("list", "-mod=readonly", "-m", "-f", "{{.Dir}}", name).strip())

    def _build(self, binary: Path) -> None:
        part = binary.with_name(f".{self.name}.part")
        options = ("-mod=readonly", "-trimpath", "-buildvcs=false", *self.flags)
        self._go("build", *options, "-o", str(part), self.package)
        part.replace(binary)

    def _go(self, *words: str) -> str:
        run = subprocess.run(
            ["go", *words],
            cwd=self.folder,
            env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if run.returncode:
            tail = "\n".join(run.stderr.strip().splitlines()[-8:])
            raise KybernateError(f"go {words[0]} of {self.name} failed; Go said:\n{tail}")
        return run.stdout


_HELMS = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
HELM = Program(
    "helm",
    "helm.sh/helm/v3/cmd/helm",
    "which installs charts, from source: two minutes or more",
    # Helm holds a chart's kubeVersion against this where it asks no cluster.
    (f"-ldflags=-X {_HELMS}Major=1 -X {_HELMS}Minor=34",),
)
"""It renders and installs our chart in tests."""
