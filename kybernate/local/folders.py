"""Where a box keeps what: this user's folders, as the XDG base directory specification has them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import kybernate
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_APP = "kybernate"
_FORMAT = 1
_PACKAGE = Path(kybernate.__file__).parent


@dataclass(frozen=True, slots=True)
class Folders:
    """`config`: models.yaml. `state`: journal, logs, installed kyb-inits. `run`: sockets."""

    config: Path
    state: Path
    run: Path

    @property
    def seats(self) -> Path:
        """With a folder for each model's socket."""
        return self.run / "seats"

    @property
    def logs(self) -> Path:
        """With a file for each model's output."""
        return self.state / "logs"

    def make(self) -> None:
        """Make them, for this user alone. Raises ConfigError if another user owns one."""
        for folder in (self.state, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
            if found.st_uid != os.geteuid():
                problem = f"belongs to user {found.st_uid}; choose a folder of your own"
                raise ConfigError(str(folder), problem)
            folder.chmod(0o700)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers by their names in a file of a box's state, under the key `what`."""

    path: Path
    what: str

    def read(self) -> dict[str, int]:
        """Those above 0; none at all if the file isn't there or of another format."""
        try:
            kept = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        whole = isinstance(kept, dict) and kept.get("format") == _FORMAT
        numbers = kept.get(self.what) if whole else None
        if not isinstance(numbers, dict):
            return {}
        return {name: one for name, one in numbers.items() if _counts(one)}

    def write(self, numbers: Mapping[str, int]) -> None:
        """Just these from now on; at no moment half of them."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}")
        fresh.write_text(json.dumps({"format": _FORMAT, self.what: dict(numbers)}))
        fresh.rename(self.path)


def _counts(one: object) -> bool:
    return isinstance(one, int) and not isinstance(one, bool) and one > 0


def folders(environment: Mapping[str, str]) -> Folders:
    """Those of this user. Without XDG_RUNTIME_DIR sockets lie with the state."""
    home = Path(environment.get("HOME") or "/")
    state = _under(environment, "XDG_STATE_HOME", home / ".local" / "state")
    run = _under(environment, "XDG_RUNTIME_DIR", state / "run")
    return Folders(_under(environment, "XDG_CONFIG_HOME", home / ".config"), state, run)


def _under(environment: Mapping[str, str], name: str, other: Path) -> Path:
    text = environment.get(name, "")
    # The specification has relative paths ignored.
    if text.startswith("/"):
        return Path(text) / _APP
    return other if other.name == "run" else other / _APP


def given(place: str) -> Path:
    """A file for people, such as the schema of models.yaml, by its place in the sources: the
    wheel's, or the sources' own."""
    packed = _PACKAGE / "given" / place
    return packed if packed.exists() else _PACKAGE.parent / place


def native(name: str) -> Path:
    """A built native part: of the wheel, or of the sources (make native). Raises ConfigError."""
    for folder in (_PACKAGE / "native", _PACKAGE.parent / "build"):
        if (folder / name).exists():
            return folder / name
    raise ConfigError(name, "is not built; run make native, or install kybernate as a wheel")
