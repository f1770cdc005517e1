"""kyb-init on the host: one file per build, never replaced."""

from __future__ import annotations

import hashlib
import logging
import os
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.settings.agent import AgentSettings

log = logging.getLogger(__name__)

_PREFIX = "kyb-init-"


def kyb_inits(settings: AgentSettings) -> Path:
    """The folder with every kyb-init that this node's containers were ever given."""
    return settings.state_dir / "bin"


def install_kyb_init(built: Path | None, folder: Path) -> Path:
    """The file that containers get mounted. Raises ConfigError if there is none.

    A given build is copied to `folder` under a name that its content decides; without one, the
    newest that is there is taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if built is None:
        return _newest(folder)
    try:
        data = built.read_bytes()
    except OSError as error:
        raise ConfigError("kyb_init", f"can't read {built}: {error.strerror}") from error
    target = folder / f"{_PREFIX}{hashlib.sha256(data).hexdigest()}"
    if not _is_whole(target):
        # A container that runs keeps the file that it was given.
        new = folder / f".{target.name}.{os.getpid()}"
        new.write_bytes(data)
        new.chmod(0o755)
        new.rename(target)
    return target


def _is_whole(file: Path) -> bool:
    """Whether it is there, and is what its name says."""
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("%s can't be read: %s; a whole one is put in its place", file, error)
        return False
    if found != file.name.removeprefix(_PREFIX):
        log.warning("%s was changed where it lies; a whole one is put in its place", file)
        return False
    return True


def _newest(folder: Path) -> Path:
    files = sorted(folder.glob(f"{_PREFIX}*"), key=lambda file: file.stat().st_mtime)
    files = [file for file in files if _is_whole(file)]
    if not files:
        raise ConfigError("kyb_init", f"no kyb-init in {folder}; say where the built one is")
    return files[-1]
