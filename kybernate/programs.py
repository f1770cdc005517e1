"""The programs' first step: each finds the services' packages, then begins.

In the sources the services are packages beside this one. In a wheel they lie in
`kybernate/services`, since `proxy` and `registry` are plain names, which packages of others have,
too. Our programs alone look there, and before all other places; nobody else's program sees them.

`python -m kybernate.programs MODULE …` runs a module of a service so.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

_SERVICES = Path(__file__).parent / "services"


def _begin(module: str, name: str = "main") -> None:
    _find()
    getattr(importlib.import_module(module), name)()


def _find() -> None:
    if _SERVICES.is_dir() and str(_SERVICES) not in sys.path:
        sys.path.insert(0, str(_SERVICES))


def kybernate() -> None:
    """`kybernate`, and `kubectl-kyb`, which kubectl runs for `kubectl kyb`."""
    _begin("kybernate.cli", "begin")


def kubectl_complete() -> None:
    """`kubectl_complete-kyb`."""
    _begin("kybernate.cli.completing", "kubectl_complete")


def extender() -> None:
    """`kyb-extender`."""
    _begin("extender.__main__")


def webhook() -> None:
    """`kyb-webhook`."""
    _begin("webhook.__main__")


def device_plugin() -> None:
    """`kyb-device-plugin`."""
    _begin("deviceplugin.__main__")


def agent() -> None:
    """`kyb-agent`."""
    _begin("nodeagent.__main__")


def proxy() -> None:
    """`kyb-proxy`."""
    _begin("proxy.__main__")


def registry() -> None:
    """`kyb-registry`."""
    _begin("registry.__main__")


def controller() -> None:
    """`kyb-controller`."""
    _begin("controller.__main__")


if __name__ == "__main__":
    _find()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
