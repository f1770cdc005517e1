"""kubectl as people have it: it finds our plugin on the PATH, and so does a shell our command."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 90.0


class Kubectl:
    """kubectl, with our plugin on its PATH. `folder` is where our programs lie."""

    def __init__(self, kubectl: Path, folder: Path, kubeconfig: Path) -> None:
        self._kubectl, self.folder = kubectl, folder
        for name, function in (
            ("kybernate", "kybernate"),
            ("kubectl-kyb", "kybernate"),
            ("kubectl_complete-kyb", "kubectl_complete"),
            ("kyb-registry", "registry"),
        ):
            script = folder / name
            code = f"import sys; sys.argv[0] = {str(script)!r}; "
            code += f"from kybernate.programs import {function} as run; run()"
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
            script.chmod(0o755)
        path = f"{folder}:{kubectl.parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._kubectl), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self._kubectl), *words], env=self.environment, stdout=subprocess.PIPE, text=True
        )
