"""A cluster that somebody else runs, for the tests that can use one ($KYB_KUBECONFIG)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kybernate.errors import ConfigError, KybernateError
from tests.cluster.parts import accounts

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api

VARIABLE = "KYB_KUBECONFIG"


def given_kubeconfig() -> Path | None:
    """The kubeconfig in $KYB_KUBECONFIG. Raises ConfigError if it names no file."""
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    path = Path(value).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(VARIABLE, f"{path} is no file; name a kubeconfig, or unset it")
    return path


class GivenCluster:
    """What tests need of any cluster: the API as several accounts, and kubectl.

    `config/` must have been applied to it. `folder` holds the accounts' kubeconfigs.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = kubeconfig
        self._folder = folder
        self._apis: dict[str, Api] = {}

    def api(self, account: str = "admin") -> Api:
        """The API as the kubeconfig's own user (admin), or as service account kyb-<account>."""
        from kybernate.adapters.k8s import Api  # noqa: PLC0415 - the import takes 0.4 s

        if account not in self._apis:
            path = self.kubeconfig if account == "admin" else self._issue(account)
            self._apis[account] = Api(path, f"one-machine-{account}")
        return self._apis[account]

    def kubectl(self, *arguments: str, text: str | None = None, limit: float = 60.0) -> str:
        """kubectl from PATH. Raises KybernateError."""
        found = shutil.which("kubectl")
        if found is None:
            raise KybernateError(f"kubectl isn't in PATH; with {VARIABLE} the tests need it")
        argv = [found, f"--kubeconfig={self.kubeconfig}", *arguments]
        run = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=limit, check=False
        )
        if run.returncode:
            raise KybernateError(f"kubectl {' '.join(arguments[:3])} failed: {run.stderr.strip()}")
        return run.stdout

    def _issue(self, account: str) -> Path:
        token = accounts.token(self.api(), account)
        path = self._folder / f"{account}.kubeconfig"
        text = json.dumps(with_token(yaml.safe_load(self.kubeconfig.read_text()), token))
        accounts.write_secret(path, text)
        return path


def with_token(kubeconfig: dict[str, Any], token: str) -> dict[str, Any]:
    """The same kubeconfig, but its current user shows a token."""
    current = kubeconfig.get("current-context")
    contexts = [one for one in kubeconfig.get("contexts", []) if one.get("name") == current]
    if not contexts:
        raise ConfigError(
            VARIABLE, "it has no current context; `kubectl config use-context` sets it"
        )
    context = {**contexts[0]["context"], "user": "account"}
    return {
        **kubeconfig,
        "contexts": [{"name": current, "context": context}],
        "users": [{"name": "account", "user": {"token": token}}],
    }
